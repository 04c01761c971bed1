//! The example of this crate runs to its end.

#[path = "../examples/file_system.rs"]
mod file_system;

#[test]
fn a_file_system_lives_through_a_lost_disk() {
    file_system::main().expect("the example runs");
}
