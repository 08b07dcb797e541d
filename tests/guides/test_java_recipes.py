"""The pieces of Java in the guides that are no whole program: each compiles as the page shows it.

Nothing runs here. Source: docs/guides/outbox.md, docs/guides/serializers.md.
"""

import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from installing import install, only_installer
from java_compiler import compile_java

from delayd.dev.jars import ivy_jar, kafka_jars
from delayd.runtime.cache import cache_directory
from delayd.runtime.java import find_java

GUIDES = Path(__file__).parents[2] / "docs" / "guides"
JARS = (
    ("org.apache.kafka", "kafka-streams", "4.3.1"),
    ("org.apache.flink", "flink-connector-kafka", "4.0.1-2.0"),
    ("org.apache.flink", "flink-connector-base", "2.0.0"),
    ("org.apache.flink", "flink-core", "2.0.0"),
    ("org.apache.flink", "flink-core-api", "2.0.0"),
    ("org.apache.flink", "flink-annotations", "2.0.0"),
    ("io.apicurio", "apicurio-registry-serdes-avro-serde", "2.6.13.Final"),
    ("io.apicurio", "apicurio-registry-serde-common", "2.6.13.Final"),
    ("io.apicurio", "apicurio-registry-schema-resolver", "2.6.13.Final"),
    ("org.apache.avro", "avro", "1.12.0"),
)
"""What a compiler needs of them, and nothing behind it."""
IMPORTS = """
import static java.nio.charset.StandardCharsets.UTF_8;
import java.util.Map;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.header.Headers;
import org.apache.kafka.common.header.internals.RecordHeaders;
"""
AROUND = {
    "streams": (
        "outbox.md",
        "public void process(",
        """
import org.apache.kafka.streams.Topology;
import org.apache.kafka.streams.processor.api.Processor;
import org.apache.kafka.streams.processor.api.ProcessorContext;
import org.apache.kafka.streams.processor.api.Record;
class Recipe implements Processor<String, String, String, String> {
    private ProcessorContext<String, String> context;
    @Override public void init(ProcessorContext<String, String> context) { this.context = context; }
    static Topology topology(Topology topology) {
        topology.addSource("orders", "orders").addProcessor("reminder", Recipe::new, "orders");
        return SINK;
    }
    @Override
    RECIPE
}
""",
    ),
    "flink": (
        "outbox.md",
        "public ProducerRecord<byte[], byte[]> serialize(",
        """
import org.apache.flink.connector.base.DeliveryGuarantee;
import org.apache.flink.connector.kafka.sink.KafkaRecordSerializationSchema;
class Recipe implements KafkaRecordSerializationSchema<Map.Entry<String, String>> {
    static final Object[] NAMED = {DeliveryGuarantee.EXACTLY_ONCE, DeliveryGuarantee.AT_LEAST_ONCE};
    @Override
    RECIPE
}
""",
    ),
    "serializers": (
        "serializers.md",
        "AvroKafkaSerializer<",
        """
import io.apicurio.registry.serde.avro.AvroKafkaSerializer;
import org.apache.avro.generic.GenericRecord;
import org.apache.kafka.clients.producer.Producer;
class Recipe {
    static void send(Map<String, Object> registrySettings, GenericRecord order, byte[] key,
            Headers headers, Producer<byte[], byte[]> producer) {
        RECIPE
    }
}
""",
    ),
}
"""By name: the page, how the piece begins, and the class around it."""


@pytest.fixture(scope="module")
def cache() -> Iterator[Path]:
    """The cache of the guides, while nobody else installs into it."""
    with only_installer(cache_directory(os.environ), "guides") as folder:
        yield folder


@pytest.fixture(scope="module")
def classpath(cache: Path) -> str:
    """Fetch what is there to compile with."""
    java = find_java(os.environ)
    jars, arriving = cache / "recipes", cache / "recipes-arriving"
    wanted = "".join(
        f'<dependency org="{org}" name="{name}" rev="{version}" conf="default" transitive="false"/>'
        for org, name, version in JARS
    )
    module = cache / "recipes.xml"
    text = (
        '<ivy-module version="2.0"><info organisation="delayd" module="recipes"/>'
        f"<dependencies>{wanted}</dependencies></ivy-module>"
    )
    if not jars.exists() or module.read_text() != text:
        shutil.rmtree(jars, ignore_errors=True)
        shutil.rmtree(arriving, ignore_errors=True)
        module.write_text(text)
        install(
            "the jars of the guides' recipes",
            [
                *(java.path, f"-Divy.default.ivy.user.dir={cache / 'ivy'}", "-jar", ivy_jar()),
                *("-cache", cache / "ivy" / "cache", "-ivy", module, "-types", "jar", "bundle"),
                *("-retrieve", f"{arriving}/[artifact]-[revision].[ext]"),
            ],
        )
        arriving.rename(jars)
        shutil.rmtree(cache / "ivy")
    of_kafka = kafka_jars(java, env=os.environ)
    found = [*jars.glob("*.jar"), *of_kafka.glob("kafka-clients-*.jar")]
    assert len(found) == len(JARS) + 1
    return os.pathsep.join(str(jar) for jar in found)


@pytest.mark.parametrize("name", AROUND)
def test_a_piece_of_java_in_a_guide_compiles(
    name: str, cache: Path, classpath: str, tmp_path: Path
) -> None:
    page, begins, around = AROUND[name]
    text = (GUIDES / page).read_text()
    pieces = re.findall(r"^```java\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)
    [piece] = [each for each in pieces if each.startswith(begins)]
    source = IMPORTS + around.replace("RECIPE", piece)
    if "SINK" in source:
        [sink] = re.findall(r"`(topology\.addSink\(.*?\))`", text)
        source = source.replace("SINK", sink)
    (tmp_path / "Recipe.java").write_text(source)
    compile_java(name, [tmp_path / "Recipe.java"], classpath, tmp_path / "classes", cache)
