"""What went wrong at other gateways and providers, and the test that it cannot happen here."""

import re
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]
VERIFIER = "identity/test_verifier.py"
FRONT = "gateway/fronts/test_resource_server.py"
PEOPLE = "gateway/test_people.py"
SIGN_IN = "gateway/fronts/test_provider_sign_in.py"
ACCOUNTS = "gateway/fronts/test_accounts.py"
MIXED = "gateway/test_people_interleaved.py"

KNOWN = {
    # tokens and keys
    "a token that a library accepts": (VERIFIER, "a_token_is_refused_that_is"),
    "a key for encryption checks a signature": (VERIFIER, "a_signature_is_refused_by"),
    "a provider's own header members lock everybody out": (
        VERIFIER, "members_that_providers_add_to_the_header_do_no_harm",
    ),
    "a token without a kid": (
        VERIFIER, "a_token_without_a_kid_needs_a_provider_with_only_one_key",
    ),
    "an hour without anybody after a rotation": (
        VERIFIER, "a_rotated_key_is_fetched_once_and_no_token_refused",
    ),
    "a rotation under load": (FRONT, "a_key_rotates_under_load_and_no_call_is_refused"),
    "a stranger drives the fetches": (
        VERIFIER, "ten_thousand_invented_keys_cause_at_most_two_fetches",
    ),
    "old keys without an end": (
        VERIFIER, "known_people_go_on_while_the_provider_is_away_but_not_forever",
    ),
    "a symmetric key in a key set": (
        VERIFIER, "symmetric_and_private_keys_of_a_key_set_are_ignored",
    ),
    "an error in place of the keys": (
        VERIFIER, "a_key_set_that_cannot_be_used_does_not_replace_the_last_one",
    ),
    "keys from the private network": (
        VERIFIER, "a_provider_cannot_send_us_into_the_private_network",
    ),
    "a failing introspection": (VERIFIER, "a_failing_introspection_says_nothing_about_the_token"),
    "an opaque token for somebody else": (VERIFIER, "an_opaque_token_is_refused_that_is"),
    "a machine without a subject": (VERIFIER, "an_opaque_token_of_a_machine_has_no_subject"),
    # what users complained about
    "tools vanish with an expired token": (
        PEOPLE, "a_refused_refresh_is_a_sentence_for_its_person_and_keeps_the_tools",
    ),
    "prompts and resources without the person's account": (
        MIXED, "interleaved_requests_of_three_people_never_mix",
    ),
    "initialize hangs with a refresh": (PEOPLE, "nobody_waits_for_a_refresh_that_is_stuck"),
    "a refused refresh is an error 500": (
        PEOPLE, "a_refused_refresh_is_a_sentence_for_its_person_and_keeps_the_tools",
    ),
    "a stale token is swallowed": (PEOPLE, "fifty_calls_at_expiry_cause_one_refresh"),
    "a full login although it could be renewed": (
        "cluster/test_logins.py",
        "fifty_calls_at_expiry_renew_the_token_once_over_all_replicas",
    ),
    "a relative link": (PEOPLE, "who_cannot_be_asked_gets_a_full_link_and_the_next_call_works"),
    "a team shares one account": (
        PEOPLE, "everyone_has_a_program_of_their_own_with_their_own_key",
    ),
    "http:// behind a proxy with TLS": (
        FRONT, "each_path_names_its_own_metadata_and_the_public_name_not_the_requested_one",
    ),
    "metadata that need a token": (
        FRONT, "the_metadata_is_at_all_three_places_and_needs_no_token",
    ),
    "a rule for /mcp/* and not /mcp": (FRONT, "each_profile_is_a_resource_of_its_own"),
    "a token for the host": (FRONT, "listed_audiences_are_accepted_as_exact_texts"),
    "a sign-in at one replica only": (
        SIGN_IN, "any_replica_can_finish_a_sign_in_that_another_began",
    ),
    "a login at one replica only": (
        "cluster/test_accounts.py",
        "a_login_that_began_at_one_replica_is_finished_at_another",
    ),
    # traps
    "a machine in a person's account": (
        SIGN_IN, "a_machine_sees_nothing_of_the_servers_of_people_and_gets_no_link",
    ),
    "two issuers with the same subject": (VERIFIER, "two_issuers_may_have_the_same_subject"),
    "an audience of another provider": (
        VERIFIER, "what_one_provider_may_issue_tokens_for_counts_for_no_other",
    ),
    "a status after the stream has begun": (
        FRONT, "a_call_that_needs_more_scopes_asks_for_them_before_its_stream_starts",
    ),
    "a parked question of another": (
        FRONT, "cve_2026_52870_a_parked_question_is_of_no_use_to_others",
    ),
    "tasks of others": (FRONT, "cve_2026_52870_tasks_of_others_are_neither_listed_nor_read"),
    "a session without its person": (
        FRONT, "cve_2026_52869_a_session_belongs_to_the_person_and_their_client",
    ),
    "a token for another resource": (
        FRONT, "cve_2025_69196_a_token_for_another_resource_is_refused",
    ),
    "clocks that differ": (VERIFIER, "clocks_may_differ_by_the_leeway_and_no_more"),
    "words of a provider as markup": (SIGN_IN, "what_a_provider_says_is_text_on_our_page"),
    "a proof with a digest of its body": (FRONT, "a_proof_may_say_what_its_body_is"),
    # phishing with links
    "a link sent to somebody else": (
        ACCOUNTS, "a_link_that_was_sent_to_somebody_else_connects_nothing",
    ),
    "a link in a private window": (
        ACCOUNTS, "a_link_opened_in_a_private_window_asks_who_opens_it",
    ),
    "an edited link": (ACCOUNTS, "an_edited_link_is_refused"),
    "a replayed link": (ACCOUNTS, "a_replayed_link_connects_the_same_person_only"),
    "a login that another one finishes": (
        ACCOUNTS, "the_redirect_of_a_login_counts_only_in_the_browser_that_began_it",
    ),
    "a link that signs in somebody else": (
        SIGN_IN, "a_link_to_sign_in_leads_nowhere_else_and_sets_nothing",
    ),
}  # fmt: skip


@pytest.mark.parametrize("failure", KNOWN)
def test_a_known_failure_has_its_test(failure):
    file, name = KNOWN[failure]

    assert re.search(rf"def test_{name}\(", (TESTS / file).read_text())
