"""Who may do what through the HTTP API, and what a request may cost."""

from mutants.mutant import Mutant, one_edit

FOLDER = "delayd/node/monitoring"
API = f"{FOLDER}/api"
TESTS = "tests/unit/node/monitoring"
OF_API = f"{TESTS}/test_api.py"
OF_CERTIFICATES = f"{TESTS}/test_client_certificates.py"
OF_ORIGIN = f"{TESTS}/test_origin.py"
OF_HOSTILE = f"{TESTS}/test_api_malformed.py"
PORT = "../security.md#the-admin-port"

HTTP_API: tuple[Mutant, ...] = (
    one_edit(
        "api-any-scope",
        "a token does only what its scopes say",
        PORT,
        f"{API}/access.py",
        "        if scope not in token.scopes:\n",
        "        if not token.scopes:\n",
        f"{OF_API}::test_a_token_may_do_what_its_scopes_say",
    ),
    one_edit(
        "api-wrong-token-reads",
        "whoever shows a wrong token reads nothing, also where everybody may read",
        PORT,
        f"{API}/access.py",
        "        if token is None and shown is None and self._anonymous_reads and",
        "        if token is None and self._anonymous_reads and",
        f"{OF_API}::test_everybody_may_read_where_the_operator_says_so_and_nobody_may_change",
    ),
    one_edit(
        "api-guesses-are-free",
        "whoever guesses tokens is slowed down",
        PORT,
        f"{API}/access.py",
        '            self._rates.take(request.client.host if request.client else "")\n',
        "            pass\n",
        f"{OF_API}::test_too_many_requests_are_told_to_come_back",
    ),
    one_edit(
        "api-batch-to-any-target",
        "each message of a batch is for a target of the token",
        PORT,
        f"{API}/writes.py",
        "            refuse_target(scheduler, message.topic)\n"
        "            _checked(services, message, message.id)\n            under_way",
        "            _checked(services, message, message.id)\n            under_way",
        f"{OF_API}::test_a_token_for_some_targets_sees_and_changes_no_others",
    ),
    one_edit(
        "api-replaces-what-others-have",
        "a token replaces nothing under an id that a target of others has",
        PORT,
        f"{API}/writes.py",
        "            _refuse_other_targets(services, scheduler, id, may_be_new=True)\n",
        "",
        f"{OF_API}::test_a_token_for_some_targets_sees_and_changes_no_others",
    ),
    one_edit(
        "api-unknown-targets-are-ones-own",
        "a token for some targets cancels nothing whose target is not known",
        PORT,
        "delayd/config/api_tokens.py",
        "            return not self.is_limited\n",
        "            return True\n",
        f"{OF_API}::test_a_token_for_some_targets_sees_and_changes_no_others",
    ),
    one_edit(
        "api-tells-of-other-targets",
        "a token for some targets is not told which partitions of others wait",
        PORT,
        f"{API}/reads.py",
        '"spared_partitions": mine}',
        '"spared_partitions": spared}',
        f"{TESTS}/test_api_looking.py::test_a_token_for_some_targets_is_told_of_no_other",
    ),
    one_edit(
        "api-any-authority",
        "a certificate counts only if one of the authorities has signed it",
        PORT,
        f"{FOLDER}/http.py",
        "if client_ca is None else ssl.CERT_OPTIONAL",
        "if client_ca else ssl.CERT_OPTIONAL",
        f"{OF_CERTIFICATES}::test_a_certificate_that_is_not_believed_gets_no_connection",
    ),
    one_edit(
        "api-certificate-beside-a-wrong-token",
        "a wrong token is not made good by a certificate",
        PORT,
        f"{API}/access.py",
        "        if shown is None:\n",
        "        if shown is None or self._tokens.of(shown) is None:\n",
        f"{OF_CERTIFICATES}::test_a_token_counts_before_the_certificate",
    ),
    one_edit(
        "api-any-origin",
        "a page of another site changes nothing",
        PORT,
        f"{FOLDER}/origin.py",
        '        origin.partition(b"://")[2].lower() == host.lower() for',
        '        origin.partition(b"://")[2].lower() != b"" for',
        f"{OF_ORIGIN}::test_a_page_of_another_site_changes_nothing_even_with_a_token",
    ),
    one_edit(
        "api-origin-of-exports-is-not-asked",
        "a page of another site begins no export",
        PORT,
        f"{FOLDER}/origin.py",
        'scope["method"] not in SAFE and',
        'scope["path"].startswith("/v1/") and scope["method"] not in SAFE and',
        f"{OF_ORIGIN}::test_a_page_of_another_site_begins_no_export_though_that_needs_no_token",
    ),
    one_edit(
        "api-endless-bodies",
        "a body without a length ends at the largest size",
        PORT,
        f"{API}/intake.py",
        '        body += message.get("body", b"")\n        if len(body) > BODY_BYTES_MAX:\n',
        '        body += message.get("body", b"")\n        if len(body) < 0:\n',
        f"{OF_API}::test_a_body_that_is_too_large_is_refused_before_it_is_read",
    ),
    one_edit(
        "api-silence-is-not-limited",
        "a connection without a whole request is let go",
        PORT,
        f"{FOLDER}/connections.py",
        "self.is_silent and now_s - self._silent_since_s >= HEAD_TIMEOUT_S",
        "self.is_silent and now_s - self._silent_since_s >= 3_600",
        f"{OF_HOSTILE}::test_a_client_that_sends_no_whole_request_is_let_go",
    ),
    one_edit(
        "api-schedules-without-its-id",
        "the same schedule with an id, again, stores nothing more",
        PORT,
        f"{API}/writes.py",
        "topic, content, id = message.topic, message.content(), message.id",
        "topic, content, id = message.topic, message.content(), None",
        f"{OF_ORIGIN}::test_a_repeated_schedule_stores_one_message",
    ),
)
