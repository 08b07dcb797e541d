package io.delayd.spring;

import io.micrometer.core.instrument.MeterRegistry;

/** Counts in a registry of Micrometer. */
final class MicrometerMeters implements DelaydMeters {
    private final MeterRegistry registry;

    MicrometerMeters(MeterRegistry registry) {
        this.registry = registry;
    }

    @Override
    public void request(String op, String outcome) {
        registry.counter("delayd.requests", "op", op, "outcome", outcome).increment();
    }

    @Override
    public void verdict(String op, String verdict) {
        registry.counter("delayd.verdicts", "op", op, "verdict", verdict).increment();
    }
}
