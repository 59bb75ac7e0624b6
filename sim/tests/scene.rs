//! The scenes with the journal as it is; `cargo xtask ci faults` runs them with a journal that is wrong on purpose.

mod scenes;

#[test]
fn permits_stay_while_the_write_is_in_flight() {
    scenes::permits();
}

#[test]
fn damage_below_the_proven_end_is_named_and_never_cut() {
    scenes::damage();
}

#[test]
fn what_is_cut_off_is_quarantined() {
    scenes::tail();
}

#[test]
fn retention_cut_anywhere_leaves_no_segment_missing() {
    scenes::retention();
}

#[test]
fn no_two_segments_have_one_salt() {
    scenes::salt();
}

#[test]
fn a_failed_write_costs_nothing_that_shared_its_block() {
    scenes::shared_block();
}

#[test]
fn a_failed_sync_costs_nothing_that_shared_its_block() {
    scenes::unsynced::repeated_block();
}

#[test]
fn what_a_new_segment_repeats_is_taken_from_it_where_the_old_one_has_a_gap() {
    scenes::unsynced::repeated_segment();
}

#[test]
fn a_commit_marker_that_cannot_be_written_back_costs_nothing_that_shared_its_block() {
    scenes::unsynced::commit_marker_block();
}

#[test]
fn what_is_written_over_a_commit_marker_and_synced_is_not_written_again() {
    scenes::unsynced::written_over();
}

#[test]
fn a_failed_segment_is_ended_by_a_footer_and_not_written_again() {
    scenes::unsynced::ended_by_a_footer_alone();
}

#[test]
fn the_age_of_what_is_not_durable_is_not_that_of_a_commit_marker() {
    scenes::unsynced::age();
}

#[test]
fn a_reader_overtaken_by_retention_gets_no_damage() {
    scenes::overtaken::retention();
}

#[test]
fn retention_by_free_space_removes_no_more_than_makes_the_room() {
    scenes::room::held_open();
}

#[test]
fn a_file_that_cannot_be_removed_takes_no_other_along() {
    scenes::room::not_removed();
}

#[test]
fn a_recovery_that_failed_goes_on_whatever_retention_took_meanwhile() {
    scenes::recovery_again();
}

#[test]
fn a_segment_used_again_holds_nothing_of_what_it_was() {
    scenes::used_again();
}

#[test]
fn a_damaged_segment_is_not_used_again() {
    scenes::damaged_goes();
}

#[test]
fn a_late_write_of_a_dead_process_is_waited_for() {
    scenes::late_write();
}

#[test]
fn what_lies_behind_a_cut_never_comes_back() {
    scenes::behind_the_cut();
}

#[test]
fn a_recovery_on_a_full_disk_keeps_the_space_that_it_has() {
    scenes::recovery_keeps_its_space();
}

#[test]
fn what_has_an_offset_has_room_on_a_disk_that_fills() {
    scenes::full_disk();
}

#[test]
fn a_file_system_that_becomes_read_only_costs_nothing() {
    scenes::read_only();
}
