package io.delayd.spring;

import static java.nio.charset.StandardCharsets.UTF_8;
import static org.assertj.core.api.Assertions.assertThat;

import io.delayd.BytesPassing;
import io.delayd.DelaydException;
import io.micrometer.core.instrument.MeterRegistry;
import io.micrometer.core.instrument.simple.SimpleMeterRegistry;
import java.time.Duration;
import org.apache.kafka.common.serialization.Serializer;
import org.junit.jupiter.api.Test;
import org.springframework.boot.autoconfigure.AutoConfigurations;
import org.springframework.boot.autoconfigure.kafka.KafkaAutoConfiguration;
import org.springframework.boot.test.context.FilteredClassLoader;
import org.springframework.boot.test.context.runner.ApplicationContextRunner;
import org.springframework.kafka.core.DefaultKafkaProducerFactory;

/** What Boot makes of the properties, without a Kafka. */
class DelaydAutoConfigurationTest {
    private final ApplicationContextRunner runner = new ApplicationContextRunner()
            .withConfiguration(AutoConfigurations.of(KafkaAutoConfiguration.class, DelaydAutoConfiguration.class))
            .withPropertyValues("spring.kafka.bootstrap-servers=127.0.0.1:1", "delayd.check-at-start=false",
                    "spring.kafka.admin.properties.default.api.timeout.ms=500",
                    "spring.kafka.admin.properties.request.timeout.ms=500");

    @Test
    void thePropertiesAreBound() {
        runner.withPropertyValues("delayd.prefix=eu-", "delayd.verdict-timeout=5s").run(context ->
                assertThat(context.getBean(DelaydProperties.class)).isEqualTo(
                        new DelaydProperties("eu-", Duration.ofSeconds(5), false, true)));
    }

    @Test
    void theApplicationDoesNotStartWhereThereIsNoDelayd() {
        runner.withPropertyValues("delayd.check-at-start=true").run(context ->
                assertThat(context).getFailure().rootCause().isNotNull());
        runner.withPropertyValues("delayd.check-at-start=true").run(context ->
                assertThat(context.getStartupFailure()).hasStackTraceContaining(DelaydException.class.getName()));
    }

    @Test
    void theSerializersOfTheProducerFactoryLetBytesPass() {
        runner.run(context -> {
            Serializer<?> keys = keySerializer(context.getBean(DefaultKafkaProducerFactory.class));
            assertThat(keys).isInstanceOf(BytesPassing.class);
            assertThat(((BytesPassing) keys).serialize("t", "é")).isEqualTo("é".getBytes(UTF_8));
            assertThat(((BytesPassing) keys).serialize("t", new byte[] {1})).containsExactly(1);
        });
        runner.withPropertyValues("delayd.pass-bytes=false").run(context ->
                assertThat(keySerializer(context.getBean(DefaultKafkaProducerFactory.class))).isNull());
    }

    private static Serializer<?> keySerializer(DefaultKafkaProducerFactory<?, ?> factory) {
        return factory.getKeySerializerSupplier() == null ? null : factory.getKeySerializerSupplier().get();
    }

    @Test
    void countersAreThereWithARegistryAlone() {
        runner.run(context -> assertThat(context).doesNotHaveBean(DelaydMeters.class));
        runner.withBean(MeterRegistry.class, SimpleMeterRegistry::new)
                .run(context -> assertThat(context).hasSingleBean(DelaydMeters.class));
        runner.withClassLoader(new FilteredClassLoader(MeterRegistry.class))
                .run(context -> assertThat(context).hasSingleBean(DelaydTemplate.class));
    }

    @Test
    void aTemplateOfTheApplicationTakesItsPlace() {
        DelaydTemplate other = new DelaydTemplate(null, null, null, DelaydMeters.NONE);
        runner.withBean(DelaydTemplate.class, () -> other)
                .run(context -> assertThat(context.getBean(DelaydTemplate.class)).isSameAs(other));
    }
}
