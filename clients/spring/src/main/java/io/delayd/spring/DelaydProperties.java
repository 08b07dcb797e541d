package io.delayd.spring;

import java.time.Duration;
import org.springframework.boot.context.properties.ConfigurationProperties;
import org.springframework.boot.context.properties.bind.DefaultValue;

/**
 * The properties {@code delayd.*}. Brokers and security are those of {@code spring.kafka}.
 *
 * @param prefix what the names of delayd's topics begin with
 * @param verdictTimeout how long a call waits for its verdict
 * @param checkAtStart whether the application starts only where buffer and receipts exist
 * @param passBytes whether the serializers of Boot's producer factory let bytes pass, so that
 *     requests go in its transactions
 */
@ConfigurationProperties("delayd")
public record DelaydProperties(
        @DefaultValue("delayd-") String prefix,
        @DefaultValue("30s") Duration verdictTimeout,
        @DefaultValue("true") boolean checkAtStart,
        @DefaultValue("true") boolean passBytes) {}
