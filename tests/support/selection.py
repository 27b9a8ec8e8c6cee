"""Which tests `make test`, `make test-long` and `make test-rest` run, and in which order.

Design
------
A test is quick, *slow* (seconds) or *long*. Much of what is long is of one kind with something that runs more often:
the other cases of a test, another tab of the page. That is the *rest*: run before a release, and after a change to what
it is about. Of each kind of test `make test` runs at least one.
"""

import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

ALONE = (
    "test_rollback_latency.py",
    "test_never_in_the_way.py",
    "test_memory.py",
    "test_page_speed.py",
)
"""Files whose slow tests measure times or sizes."""


LONG = (
    "test_rollback_latency.py",
    "test_memory.py",
    "test_never_in_the_way.py",
    "test_right_numbers.py",
    "test_rollback_sharded.py",
    "test_rollback_restraint.py",
    "test_contact_sheets.py",
    "test_deploy.py",
    "test_examples.py",
    "test_report_page.py",
    "test_preflight_ranks.py",
    "test_hunted_ranks.py",
    "test_fleet_page.py",
    "test_every_field.py",
    "test_demo.py",
    "test_tensor_parallel.py",
    "test_stumbling_ranks.py",
    "test_forged_commands.py",
    "test_launches.py",
    "test_snapshot_replay.py",
    "test_preflight_command.py",
    "test_checkpoint_again.py",
    "test_starved.py",
    "test_two_ranks.py",
    "test_chain.py",
    "test_local_gradients.py",
    "test_revoked_keys.py",
    "test_dashboard_queries.py",
    "test_remote_write.py",
    "test_curves_page.py",
    "test_tabs_page.py",
    "test_ranks_page.py",
    "test_layers_page.py",
    "test_overview_page.py",
    "test_timeline_page.py",
    "test_log_limits.py",
)
"""Files whose slow tests take minutes together: `make test` leaves them out. (CI runs the demo with the wheel.)"""


SMOKE = (
    "test_a_starved_run_has_the_losses_and_the_exit_code_of_a_bare_one_and_logs_the_reason_once",
    "test_a_job_is_seen_from_its_first_step_to_its_good_bye",
    "test_a_nan_on_one_rank_is_one_page_and_a_resolve",
    "test_a_revoked_key_is_closed_out_and_the_others_lose_nothing",
    "test_throughput_and_phases_are_drawn_and_go_on_live",
    "test_many_ranks_make_a_map_that_names_the_one_in_trouble",
    "test_the_map_grows_with_each_look_and_a_nan_is_no_ordinary_cell",
)
"""Slow tests of those files that `make test` runs all the same: one of each kind."""


FIRST_CASE = (
    "test_the_timelines_of_promtool_pass",
    "test_commands_print_what_a_rank_sent_without_its_escapes",
    "test_common_schedules_are_silent",
    "test_nobody_is_told_of_a_healthy_run",
    "test_a_job_whose_name_could_not_stand_in_a_path_or_a_label_is_refused",
    "test_nothing_fails_on_a_run_that_trains",
    "test_it_serves_on_after_sigterm_and_a_second_signal_ends_it_at_once",
    "test_a_section_that_cannot_work_is_one_line",
    "test_a_command_does_not_wait_for_a_web_server_or_plots_that_it_has_no_use_for",
    "test_who_may_not_write_may_not_change_thresholds",
    "test_a_bad_file_is_one_line_and_the_old_thresholds_stay",
    "test_an_address_that_is_none_is_one_line",
    "test_an_unknown_name_gets_the_nearest_one",
    "test_the_file_is_found_as_the_daemon_finds_it",
    "test_every_rule_has_its_page",
    "test_no_rule_fails_on_junk_in_the_users_configuration",
    "test_kinds_that_may_stand_still_while_they_count_are_left_alone",
    "test_a_library_that_is_missing_is_one_line_that_names_the_extra",
    "test_a_signal_ends_it_within_two_seconds_also_with_an_open_stream",
    "test_imports_without_torch",
    "test_without_the_daemons_extra_the_command_says_how_to_install_it",
    "test_any_value_of_a_row_may_be_wrong",
    "test_a_long_healthy_run_is_silent",
    "test_every_flag_of_the_terminals_commands_is_in_its_page",
    "test_all_ranks_go_back_at_the_same_step",
    "test_the_slow_rank_is_named_with_its_place",
    "test_a_new_process_group_continues_bit_exactly",
    "test_nothing_waits_for_a_device",
    "test_a_signal_is_named_in_the_bye_and_ends_the_process_as_without_the_agent",
    "test_a_run_ends_with_the_state_that_it_had_and_names_the_rank",
    "test_a_daemon_that_kills_itself_at_a_commit_loses_nothing_and_repeats_nothing",
    "test_sparse_embeddings_are_learned_too",
    "test_single_outliers_of_very_heavy_tails_never_page",
)
"""Tests whose cases take seconds each: `make test` runs the first case, `make test-rest` the others."""


ALL_CASES = (
    "test_a_long_noisy_healthy_run_is_silent",
    "test_a_script_exits_as_it_would_and_within_a_second",
    "test_an_actor_critics_and_a_temperature_are_parts_and_targets_are_not",
    "test_an_objective_that_the_user_set_stays",
    "test_a_process_with_environments_to_act_in_learns_by_reinforcement",
    "test_that_validation_is_not_seen_is_stated",
    "test_a_script_that_fails_before_its_first_step_shows_its_own_error_alone",
    "test_an_exit_code_other_than_0_is_a_failure_of_the_rank",
)
"""Tests that take seconds, of which `make test` runs others of the same kind, and `make test-rest` these."""


REST = (
    "test_contact_sheets.py",
    "test_deploy.py",
    "test_demo.py",
    "test_examples.py",
    "test_report_page.py",
    "test_fleet_page.py",
    "test_curves_page.py",
    "test_tabs_page.py",
    "test_ranks_page.py",
    "test_layers_page.py",
    "test_overview_page.py",
    "test_timeline_page.py",
    "test_cardinality.py",
    "test_drills.py",
    "test_compiled_activations.py",
)
"""Files of whose long tests `make test-long` runs those of `STAYS`, and `make test-rest` the others."""


STAYS = (
    "test_ddp_and_again_from_its_checkpoint",
    "test_no_code_for_a_script_of_one_s_own",
    "test_a_seventh_tab_is_live_as_well_and_the_first_has_missed_nothing",
    "test_diseases_are_found_under_their_names_as_one_incident_each_with_their_cause",
    "test_restored_weights_and_another_cadence_change_nothing",
    "test_ranks_and_incidents_without_end_are_bounded_in_a_day",
)
"""Long tests of those files."""


CASES = (
    "test_every_query_returns_data",
    "test_every_query_returns_data_of_the_real_run",
    "test_each_extra_alone_installs_into_an_empty_environment",
)
"""Of long tests with several cases `make test-long` runs the first, `make test-rest` the others; of these, all."""


FIRST = (
    "test_rollback_restraint.py",
    "test_every_field.py",
    "test_rollback_sharded.py",
    "test_hunted_ranks.py",
    "test_right_numbers.py",
    "test_chaos.py",
    "test_pickled.py",
    "test_frameworks.py",
    "test_protocol_processes.py",
    "test_daemon_killed.py",
    "test_drills.py",
    "test_demo.py",
    "test_chain.py",
    "test_no_code.py",
    "test_two_ranks.py",
    "test_dashboard_queries.py",
    "test_page.py",
    "test_accepted_writes.py",
    "test_tensor_parallel.py",
)
"""Slow files that take longest, in that order: begun last, one of them would run alone at the end."""


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Files that `-m` leaves out as a whole are not imported: all of them take each worker 20 s."""
    chosen = re.match(r"(not slow|slow|alone|long|rest|soak)\b(?!.*\bor\b)", config.option.markexpr)
    if chosen is None or not collection_path.match("test_*.py"):
        return None
    text = collection_path.read_text()
    match chosen[1]:
        case "not slow":
            has_some = re.search(r"^pytestmark = .*mark\.slow", text, re.MULTILINE) is None
        case "long" | "rest":
            has_some = collection_path.name in LONG or any(
                name in text for name in ("mark.long", "support.seeds", *FIRST_CASE, *ALL_CASES)
            )
        case "alone":
            has_some = collection_path.name in ALONE or "mark.alone" in text
        case mark:
            has_some = f"mark.{mark}" in text
    return None if has_some else True


class KeptPassed:
    """`--keep-passed FILE`: tests that passed at this commit are left out, until all have."""

    def __init__(self, path: Path) -> None:
        self._path = path
        git = subprocess.run(("git", "rev-parse", "HEAD"), capture_output=True, text=True, check=False)
        self._commit = git.stdout.strip()
        self._is_worker = "PYTEST_XDIST_WORKER" in os.environ

    def _passed(self) -> Iterator[str]:
        if self._path.exists():
            commit, *names = self._path.read_text().splitlines()
            yield from names if commit == self._commit else ()

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        passed = set(self._passed())
        done = [item for item in items if item.nodeid in passed]
        items[:] = [item for item in items if item.nodeid not in passed]
        if done:
            config.hook.pytest_deselected(items=done)

    def pytest_sessionstart(self) -> None:
        if not self._is_worker:
            passed = list(self._passed())
            self._path.write_text("".join(f"{line}\n" for line in (self._commit, *passed)))

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "call" and report.passed and not self._is_worker:
            with self._path.open("a") as file:
                file.write(f"{report.nodeid}\n")

    def pytest_sessionfinish(self, exitstatus: int) -> None:
        if exitstatus == pytest.ExitCode.OK and not self._is_worker:
            self._path.unlink(missing_ok=True)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Marks what must not run beside anything else, and what takes long; puts the files that wait longest first."""
    items.sort(key=lambda item: FIRST.index(item.path.name) if item.path.name in FIRST else len(FIRST))
    seen: set[tuple[Path, str]] = set()
    for item in items:
        name = item.name.partition("[")[0]
        is_first = (item.path, name) not in seen
        seen.add((item.path, name))
        if item.path.name in ALONE and item.get_closest_marker("slow"):
            item.add_marker(pytest.mark.alone)
        if name in ALL_CASES or (name in FIRST_CASE and not is_first):
            _mark(item, "slow", "long", "rest")
        elif item.path.name in LONG and name not in SMOKE and item.get_closest_marker("slow"):
            item.add_marker(pytest.mark.long)
        if item.get_closest_marker("long") and not item.get_closest_marker("alone"):
            is_other_case = not is_first and name not in CASES
            if is_other_case or (item.path.name in REST and name not in STAYS):
                item.add_marker(pytest.mark.rest)


def _mark(item: pytest.Item, *names: str) -> None:
    for name in names:
        item.add_marker(name)
