"""What one node believes of another one's wheel."""

from mutants.mutant import Mutant, one_edit

DRAFT = "delayd/wheel/draft.py"
FILES = "delayd/wheel/files.py"
FETCHING = "delayd/cluster/fetching.py"
PROOF = "delayd/cluster/member_proof.py"
WHEEL_TESTS = "tests/unit/wheel/test_snapshots.py"
HTTP_TESTS = "tests/unit/cluster/test_fetching.py"
SOURCE = "storage.md#snapshots"

SNAPSHOTS: tuple[Mutant, ...] = (
    one_edit(
        "chunk-not-checked",
        "a chunk counts only with the proof of a member over its bytes",
        SOURCE,
        FETCHING,
        "                if asked.is_answered_by(answer.body, proof):\n",
        "                if answer.body or proof:\n",
        f"{HTTP_TESTS}::test_a_chunk_that_was_changed_on_the_way_is_asked_for_again",
        is_simulated=False,
    ),
    one_edit(
        "bytes-beyond-the-catalogue",
        "nothing comes beyond the lengths in the catalogue",
        SOURCE,
        DRAFT,
        "        if not 0 < len(data) <= stream.size_bytes - position:\n",
        "        if not data:\n",
        f"{WHEEL_TESTS}::test_bytes_beyond_the_stream_are_refused",
        is_simulated=False,
    ),
    one_edit(
        "file-longer-than-its-line",
        "a file of a copy is exactly as long as its line says",
        SOURCE,
        DRAFT,
        "                if found.spans or found.lost or length != line.info.bytes:\n",
        "                if found.spans or found.lost:\n",
        f"{WHEEL_TESTS}::test_a_file_that_is_longer_or_shorter_than_its_line_is_found",
        is_simulated=False,
    ),
    one_edit(
        "snapshots-for-anybody",
        "only members of the cluster get a snapshot",
        SOURCE,
        PROOF,
        "k for proof, k in proofs.items() if hmac.compare_digest(mac, proof)]\n",
        "k for proof, k in proofs.items()]\n",
        f"{HTTP_TESTS}::test_strangers_get_nothing",
        is_simulated=False,
    ),
    one_edit(
        "request-taken-twice",
        "a request is taken once",
        SOURCE,
        PROOF,
        "        if nonce in self._seen:\n",
        "        if nonce in ():\n",
        f"{HTTP_TESTS}::test_a_request_is_taken_once_and_for_what_it_is",
        is_simulated=False,
    ),
    one_edit(
        "nonces-forgotten-early",
        "a request is remembered for as long as its time is accepted",
        SOURCE,
        PROOF,
        "self._order[0][0] < now_ms - 2 * AGE_MAX_MS:\n",
        "self._order[0][0] < now_ms - AGE_MAX_MS // 2:\n",
        f"{HTTP_TESTS}::test_old_requests_and_those_to_another_life_are_refused",
        is_simulated=False,
    ),
    one_edit(
        "installed-without-verification",
        "a copy is verified before it takes the wheel's place",
        SOURCE,
        DRAFT,
        "                    found = check_segment(self._disk, file, line)\n",
        "                    found = check_segment(\n"
        "                        self._disk, file, line._replace(start=line.info.bytes)\n"
        "                    )\n"
        "                    found.spans.clear()\n"
        "                    found.lost = 0\n",
        f"{WHEEL_TESTS}::test_a_flipped_bit_of_any_place_of_a_file_is_found",
        is_simulated=False,
    ),
    one_edit(
        "unverified-copy-finished",
        "only a verified copy takes the wheel's place after a kill",
        SOURCE,
        DRAFT,
        '    if not Path(home.draft, "verified").exists():\n',
        '    if not Path(home.draft, "source.json").exists():\n',
        f"{WHEEL_TESTS}::test_an_unverified_copy_takes_nobodys_place",
        is_simulated=False,
    ),
    one_edit(
        "another-clusters-wheel",
        "a copied checkpoint says itself that it is of this cluster",
        SOURCE,
        FETCHING,
        "        if of_whom is None or (of_whom.cluster, of_whom.buffer) "
        "!= (ours.cluster, ours.buffer):\n",
        "        if of_whom is None:\n",
        f"{HTTP_TESTS}::test_another_clusters_wheel_is_refused",
        is_simulated=False,
    ),
    one_edit(
        "unlinked-under-a-snapshot",
        "no file is unlinked, cut or punched while a snapshot reads it",
        SOURCE,
        FILES,
        "        if self.holds:\n            return\n",
        "",
        f"{WHEEL_TESTS}::test_a_copy_is_the_checkpoint_whatever_happens_beside_it",
        is_simulated=False,
    ),
)
