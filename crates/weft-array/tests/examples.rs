//! The examples of this crate run to their end.

#[path = "../examples/array.rs"]
mod array;
#[path = "../examples/custom_disk.rs"]
mod custom_disk;

#[test]
fn an_array_of_files_lives_through_lost_members() {
    array::main().expect("the example runs");
}

#[test]
fn a_disk_of_the_users_own_is_a_member() {
    custom_disk::main().expect("the example runs");
}
