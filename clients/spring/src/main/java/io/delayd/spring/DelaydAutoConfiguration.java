package io.delayd.spring;

import io.delayd.BytesPassing;
import io.delayd.Delayd;
import io.micrometer.core.instrument.MeterRegistry;
import java.util.HashMap;
import java.util.Map;
import java.util.function.Supplier;
import org.apache.kafka.common.serialization.Serializer;
import org.apache.kafka.common.utils.Utils;
import org.springframework.beans.factory.ObjectProvider;
import org.springframework.boot.autoconfigure.AutoConfiguration;
import org.springframework.boot.autoconfigure.condition.ConditionalOnBean;
import org.springframework.boot.autoconfigure.condition.ConditionalOnClass;
import org.springframework.boot.autoconfigure.condition.ConditionalOnMissingBean;
import org.springframework.boot.autoconfigure.condition.ConditionalOnProperty;
import org.springframework.boot.autoconfigure.kafka.DefaultKafkaProducerFactoryCustomizer;
import org.springframework.boot.autoconfigure.kafka.KafkaAutoConfiguration;
import org.springframework.boot.autoconfigure.kafka.KafkaConnectionDetails;
import org.springframework.boot.autoconfigure.kafka.KafkaProperties;
import org.springframework.boot.context.properties.EnableConfigurationProperties;
import org.springframework.boot.ssl.SslBundles;
import org.springframework.context.annotation.Bean;
import org.springframework.context.annotation.Configuration;
import org.springframework.core.annotation.Order;
import org.springframework.kafka.core.DefaultKafkaProducerFactory;
import org.springframework.kafka.core.KafkaTemplate;

/** Makes a {@link DelaydTemplate} from {@code spring.kafka.*} and {@code delayd.*}. */
@AutoConfiguration(
        after = KafkaAutoConfiguration.class,
        afterName = "org.springframework.boot.actuate.autoconfigure.metrics.CompositeMeterRegistryAutoConfiguration")
@ConditionalOnClass(KafkaTemplate.class)
@EnableConfigurationProperties(DelaydProperties.class)
public class DelaydAutoConfiguration {
    /** Last, so that it wraps the serializers that other customizers set. */
    @Bean
    @Order // lowest precedence
    @ConditionalOnProperty(name = "delayd.pass-bytes", matchIfMissing = true)
    DefaultKafkaProducerFactoryCustomizer delaydBytesPassing() {
        return DelaydAutoConfiguration::passBytes;
    }

    @Bean
    @ConditionalOnMissingBean
    @ConditionalOnBean(KafkaTemplate.class)
    DelaydTemplate delaydTemplate(KafkaTemplate<?, ?> kafka, KafkaProperties properties,
            KafkaConnectionDetails connection, ObjectProvider<SslBundles> bundles,
            DelaydProperties delayd, ObjectProvider<DelaydMeters> meters) {
        Map<String, Object> config = new HashMap<>(properties.buildAdminProperties(bundles.getIfAvailable()));
        config.put("bootstrap.servers", connection.getBootstrapServers());
        config.put(Delayd.PREFIX, delayd.prefix());
        config.put(Delayd.VERDICT_TIMEOUT_MS, delayd.verdictTimeout().toMillis());
        DelaydTemplate template = new DelaydTemplate(kafka, () -> Delayd.open(config),
                valueSerializer(kafka), meters.getIfAvailable(() -> DelaydMeters.NONE));
        if (delayd.checkAtStart()) {
            template.delayd();
        }
        return template;
    }

    private static Serializer<?> valueSerializer(KafkaTemplate<?, ?> kafka) {
        Serializer<?> set = kafka.getProducerFactory().getValueSerializer();
        return set != null ? set : named(kafka.getProducerFactory().getConfigurationProperties(), false);
    }

    @SuppressWarnings("unchecked")
    private static void passBytes(DefaultKafkaProducerFactory<?, ?> factory) {
        DefaultKafkaProducerFactory<Object, Object> own = (DefaultKafkaProducerFactory<Object, Object>) factory;
        Map<String, Object> config = factory.getConfigurationProperties();
        own.setKeySerializerSupplier(passing(own.getKeySerializerSupplier(), config, true));
        own.setValueSerializerSupplier(passing(own.getValueSerializerSupplier(), config, false));
    }

    private static Supplier<Serializer<Object>> passing(
            Supplier<Serializer<Object>> set, Map<String, Object> config, boolean isKey) {
        return () -> {
            Serializer<?> other = set == null ? null : set.get();
            return new BytesPassing(other != null ? other : named(config, isKey));
        };
    }

    /** Returns the serializer that the configuration of the producer names. */
    private static Serializer<?> named(Map<String, Object> config, boolean isKey) {
        Object type = config.get(isKey ? "key.serializer" : "value.serializer");
        try {
            Serializer<?> made = type instanceof Class<?> known
                    ? (Serializer<?>) Utils.newInstance(known)
                    : Utils.newInstance(String.valueOf(type), Serializer.class);
            made.configure(config, isKey);
            return made;
        } catch (ClassNotFoundException error) {
            throw new IllegalStateException("there is no serializer " + type, error);
        }
    }

    /** Counts where the application has Micrometer. */
    @Configuration(proxyBeanMethods = false)
    @ConditionalOnClass(MeterRegistry.class)
    static class Metrics {
        @Bean
        @ConditionalOnBean(MeterRegistry.class)
        DelaydMeters delaydMeters(MeterRegistry registry) {
            return new MicrometerMeters(registry);
        }
    }
}
