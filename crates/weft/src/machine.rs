//! What the machine has.

/// Bytes of its memory.
pub fn memory_bytes() -> u64 {
    let machine = rustix::system::sysinfo();
    machine.totalram * u64::from(machine.mem_unit)
}
