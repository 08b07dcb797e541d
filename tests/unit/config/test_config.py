"""A node's settings: a file, the environment over it, and errors that name the key."""

import os
import traceback
from pathlib import Path

import pytest
from certificates import Authority

from delayd.config.cluster_key import proof_key
from delayd.config.node import NodeConfig, load
from delayd.config.security import certificate_digest
from delayd.errors import ConfigError, ExitCode

ENOUGH = """
bootstrap = "b1:9092,b2:9092"
etcd = ["http://127.0.0.1:2379", "https://e2:2379"]
data_dir = "/data/one"
cluster_key = "sixteen letters."
"""
NEEDED = ("bootstrap", "etcd", "cluster_key", "data_dir")


@pytest.fixture(autouse=True)
def _clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in os.environ:
        if name.startswith("DELAYD_"):
            monkeypatch.delenv(name)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "delayd.toml"
    path.write_text(ENOUGH)
    return path


def with_line(file: Path, line: str) -> Path:
    file.write_text(ENOUGH + line)
    return file


def problem_of(file: Path | None) -> ConfigError:
    with pytest.raises(ConfigError) as raised:
        load(file)
    assert raised.value.exit_code is ExitCode.USAGE
    return raised.value


def test_a_file_with_the_few_keys_that_are_needed_is_enough(file: Path) -> None:
    config = load(file)
    assert config.bootstrap == "b1:9092,b2:9092"
    assert config.etcd == ("http://127.0.0.1:2379", "https://e2:2379")
    assert config.data_dir == Path("/data/one")
    assert (config.cluster, config.prefix, config.lease_ttl_s) == ("delayd", "delayd-", 3)


def test_the_environment_wins_over_the_file(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DELAYD_BOOTSTRAP", "other:1")
    monkeypatch.setenv("DELAYD_ETCD", "http://e1:1, http://e2:2")
    monkeypatch.setenv("DELAYD_ADMIN_PORT", "7171")
    config = load(with_line(file, "admin_port = 7000\nlease_ttl_s = 5"))
    assert config.bootstrap == "other:1"
    assert config.etcd == ("http://e1:1", "http://e2:2")
    assert (config.admin_port, config.lease_ttl_s) == (7171, 5)


def test_the_environment_alone_is_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DELAYD_BOOTSTRAP", "b:1")
    monkeypatch.setenv("DELAYD_ETCD", "http://e:1")
    monkeypatch.setenv("DELAYD_DATA_DIR", "/d")
    monkeypatch.setenv("DELAYD_CLUSTER_KEY", "sixteen letters.")
    assert load(None).data_dir == Path("/d")


def test_an_unknown_key_is_named(file: Path) -> None:
    problem = problem_of(with_line(file, "lease_ttl = 5"))
    assert "lease_ttl: extra inputs are not permitted" in problem.message
    assert str(file) in problem.remedy and "DELAYD_<KEY>" in problem.remedy


def test_what_is_missing_is_named_all_at_once(tmp_path: Path) -> None:
    empty = tmp_path / "empty.toml"
    empty.write_text("")
    message = problem_of(empty).message
    assert all(f"{key}: field required" in message for key in NEEDED)
    assert "the environment" in problem_of(None).remedy


@pytest.mark.parametrize(
    ("value", "says"),
    [
        ('["127.0.0.1:2379"]', "is not a URL such as http://127.0.0.1:2379"),
        ('"http://e:1,e2:2379"', "'e2:2379' is not a URL"),
        ("[]", "at least one endpoint is needed"),
        ('""', "is not a URL"),
        ("7", "etcd"),
    ],
)
def test_a_bad_endpoint_is_named_with_an_example(file: Path, value: str, says: str) -> None:
    file.write_text(ENOUGH.replace('["http://127.0.0.1:2379", "https://e2:2379"]', value))
    message = problem_of(file).message
    assert "etcd" in message and says in message


def test_rates_are_given_by_topic(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert load(with_line(file, "[rate_max]\norders = 200\n'mails.eu' = 1")).rate_max == {
        "orders": 200,
        "mails.eu": 1,
    }
    file.write_text(ENOUGH)
    monkeypatch.setenv("DELAYD_RATE_MAX", '{"orders": 7}')
    assert load(file).rate_max == {"orders": 7}


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("rate_max = 200", "rate_max: input should be a valid dictionary"),
        ("[rate_max]\norders = 0", "rate_max.orders: input should be greater than or equal to 1"),
        ("[rate_max]\norders = 1000001", "less than or equal to 1000000"),
        ("[rate_max]\norders = 0.5", "rate_max.orders: input should be a valid integer"),
        ("[rate_max]\n'a topic' = 5", "string should match pattern"),
        ("[rate_max]\n" + "".join(f"t{n} = 1\n" for n in range(201)), "at most 200 items"),
    ],
)
def test_a_rate_that_makes_no_sense_is_named(file: Path, line: str, says: str) -> None:
    assert says in problem_of(with_line(file, line)).message


@pytest.mark.parametrize(("order", "yields"), [(None, 0), (0, 2), (1, 1), (2, 0), (9, 0)])
def test_who_is_restarted_last_lets_others_campaign_first(
    file: Path, order: int | None, yields: int
) -> None:
    line = "lease_ttl_s = 5" + ("" if order is None else f"\ncampaign_order = {order}")
    times = load(with_line(file, line)).election_times
    assert (times.lease_ttl_s, times.yield_polls) == (5, yields)


def test_others_are_told_the_advertised_address_or_else_where_it_listens(file: Path) -> None:
    assert load(file).admin_address == "127.0.0.1:7070"
    line = 'admin_host = "0.0.0.0"\nadmin_advertised = "node-1.nodes:7171"'
    assert load(with_line(file, line)).admin_address == "node-1.nodes:7171"


def test_a_node_with_tls_announces_its_certificate(file: Path, tmp_path: Path) -> None:
    authority = Authority(tmp_path, "authority")
    one, other = authority.leaf("one"), authority.leaf("other", password="secret")
    pair = f'admin_cert_file = "{one.cert}"\nadmin_key_file = "{one.key}"'
    digest = certificate_digest(one.cert)
    assert load(with_line(file, pair)).admin_address == f"https://{digest}@127.0.0.1:7070"
    assert certificate_digest(one.both) == digest
    for line, says in (
        (f'api_ca_file = "{one.cert}"', "api_ca_file needs TLS on the admin port"),
        (f'{pair}\napi_ca_file = "{one.key}"', "has no certificates"),
        (f'{pair}\napi_ca_file = "nowhere.pem"', "has no certificates"),
        (f'admin_cert_file = "{one.cert}"', "go together"),
        (f'admin_key_file = "{one.key}"', "go together"),
        (pair.replace("one.key", "nowhere"), "cannot read"),
        (pair.replace("one.crt", "nowhere"), "cannot read"),
        (pair.replace("one.key", "one.crt"), "is not the key of"),
        (pair.replace("one.key", "other.key"), "is encrypted"),
    ):
        assert says in problem_of(with_line(file, line)).message, line
    with pytest.raises(ConfigError, match="no certificate in PEM"):
        certificate_digest(other.key)


@pytest.mark.parametrize(
    "line",
    [
        'cluster = "a/b"',
        'cluster = ""',
        'node = "with space"',
        'node = "-dash"',
        f'node = "{"n" * 64}"',
        "admin_port = 65536",
        'admin_advertised = "no-port"',
        'admin_advertised = "http://node-1:7070"',
        "lease_ttl_s = 1",
        "checkpoint_interval_ms = 0",
        "step_records_max = 0",
        "idle_step_interval_ms = 3600000",
        'disk_free_min_bytes = "much"',
        "export_hold_s = -1",
    ],
)
def test_a_value_out_of_bounds_is_named(file: Path, line: str) -> None:
    assert f"{line.split(' ')[0]}: " in problem_of(with_line(file, line)).message


def test_the_cluster_key_is_never_shown(file: Path) -> None:
    config = load(file)
    assert config.cluster_key.get_secret_value() == "sixteen letters."
    assert "sixteen letters." not in f"{config!r} {config} {config.model_dump()}"


def test_the_cluster_key_may_stand_in_a_file_of_its_own(file: Path, tmp_path: Path) -> None:
    secret = tmp_path / "cluster-key"
    secret.write_text("sixteen letters of a file\n")
    file.write_text(
        ENOUGH.replace('cluster_key = "sixteen letters."', f'cluster_key_file = "{secret}"')
    )
    assert load(file).cluster_key.get_secret_value() == "sixteen letters of a file"
    message = problem_of(with_line(file, f'cluster_key_file = "{secret}"')).message
    assert "cluster_key and cluster_key_file are both given" in message
    assert "sixteen" not in message


def test_a_file_may_hold_the_keys_before_too(file: Path, tmp_path: Path) -> None:
    """docs/operations.md, "A new cluster key"."""
    secret = tmp_path / "cluster-key"
    secret.write_text("the new key, sixteen\nsixteen letters.\n")
    text = ENOUGH.replace('cluster_key = "sixteen letters."', f'cluster_key_file = "{secret}"')
    file.write_text(text)
    key = load(file).cluster_key.get_secret_value()
    assert proof_key(key) == b"the new key, sixteen\nsixteen letters."
    secret.write_text("the new key, sixteen\nshort\n")
    assert "has 5 characters, fewer than 16" in problem_of(file).message


def test_an_export_token_may_stand_in_a_file_and_is_never_shown(file: Path, tmp_path: Path) -> None:
    secret = tmp_path / "token"
    secret.write_text("letters-and-more-of-them\n")
    config = load(with_line(file, f'export_token_file = "{secret}"'))
    assert config.export_token is not None
    assert config.export_token.get_secret_value() == "letters-and-more-of-them"
    assert "letters-and" not in f"{config!r} {config} {config.model_dump()}"


@pytest.mark.parametrize("token", ["", "fifteen-letters", "sixteen letters in words"])
def test_a_token_that_is_short_or_no_header_could_carry_is_refused(file: Path, token: str) -> None:
    message = problem_of(with_line(file, f'export_token = "{token}"')).message
    assert "export_token: " in message and "at least 16 visible ASCII characters" in message
    assert not token or token not in message


def test_what_is_wrong_about_the_node_and_about_security_is_named_at_once(file: Path) -> None:
    message = problem_of(with_line(file, 'lease_ttl_s = 1\nkafka_user = "u"\n')).message
    assert "lease_ttl_s: " in message and "kafka_user: of no use" in message
    assert "security: extra inputs" in problem_of(with_line(file, "[security]\nx = 1\n")).message


def test_security_is_said_in_the_same_file_and_the_same_environment(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """docs/operations.md, "Getting into Kafka and etcd"."""
    monkeypatch.setenv("DELAYD_KAFKA_PASSWORD", "of the environment")
    said = (
        'kafka_security_protocol = "SASL_SSL"\nkafka_sasl_mechanism = "PLAIN"\n'
        'kafka_user = "u"\nkafka_password = "of the file"\n'
    )
    config = load(with_line(file, said))
    assert config.security.properties()["sasl.password"] == "of the environment"
    assert "of the " not in f"{config!r} {config} {config.model_dump()}"


def test_a_short_cluster_key_is_refused_and_not_shown(file: Path) -> None:
    file.write_text(ENOUGH.replace("sixteen letters.", "fifteen letters"))
    problem = problem_of(file)
    assert "cluster_key: " in problem.message and "fewer than 16" in problem.message
    assert "delayd topics create" in problem.message
    for shown in (str(problem), "".join(traceback.format_exception(problem))):
        assert "fifteen letters" not in shown


def test_a_file_that_cannot_be_read_or_is_not_toml_is_named(tmp_path: Path) -> None:
    missing = tmp_path / "missing.toml"
    assert str(missing) in problem_of(missing).message
    broken = tmp_path / "broken.toml"
    broken.write_text("bootstrap = ")
    assert "is not TOML" in problem_of(broken).message


def test_settings_do_not_change_under_way(file: Path) -> None:
    config = load(file)
    with pytest.raises(ValueError, match="frozen"):
        config.admin_port = 1


def test_librdkafka_s_own_properties_pass_through(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    more = '[kafka]\n"security.protocol" = "SSL"\n'
    assert load(with_line(file, more)).security.kafka == {"security.protocol": "SSL"}
    monkeypatch.setenv("DELAYD_KAFKA", '{"compression.type": "zstd"}')
    assert load(file).security.kafka["compression.type"] == "zstd"


def test_every_key_has_a_unit_or_needs_none() -> None:
    """docs/design/frontier.md, Now: times are never bare numbers."""
    bare = {
        name
        for name, field in NodeConfig.model_fields.items()
        if field.annotation in (int, float)
        and not name.endswith(("_ms", "_s", "_bytes", "_port", "_max"))
    }
    assert bare == set()
