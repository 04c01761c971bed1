//! Pins a thread to a processor, because a wake-up across processors costs ten times as much as one
//! on the same processor.

use std::io;

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// Pins the calling thread to processor `cpu` (counted from 0, as `/proc/cpuinfo` does).
///
/// # Errors
/// If there is no such processor, or this process may not use it.
pub fn pin_to_cpu(cpu: usize) -> io::Result<()> {
    if cpu >= CpuSet::MAX_CPU {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    let mut set = CpuSet::new();
    set.set(cpu);
    Ok(sched_setaffinity(None, &set)?)
}

/// The processors that the calling thread may use, ascending.
///
/// # Errors
/// The kernel's.
pub fn usable_cpus() -> io::Result<Vec<usize>> {
    let set = sched_getaffinity(None)?;
    Ok((0..CpuSet::MAX_CPU).filter(|cpu| set.is_set(*cpu)).collect())
}
