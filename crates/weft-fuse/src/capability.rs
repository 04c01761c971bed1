//! Whether a program may do what only owners may (`CAP_FOWNER`), where the kernel does not decide.

use std::fs;

/// The number of `CAP_FOWNER`.
const FOWNER: u32 = 3;

/// Whether the thread `pid` may do to files of other users what their owners may. What cannot be
/// found out it may not.
pub(crate) fn acts_as_owner(pid: u32) -> bool {
    let process = |what: &str| format!("/proc/{pid}/{what}");
    // Capabilities count within a name space of users: one of its own gives none here.
    let users = |process: &str| fs::read_link(format!("{process}/ns/user")).ok();
    let is_here = users(&process("")).is_some_and(|of| users("/proc/self") == Some(of));
    is_here && fs::read_to_string(process("status")).is_ok_and(|status| has_fowner(&status))
}

fn has_fowner(status: &str) -> bool {
    let effective = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    let effective = effective.and_then(|bits| u64::from_str_radix(bits.trim(), 16).ok());
    effective.is_some_and(|bits| bits >> FOWNER & 1 == 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_capability_is_found_in_a_status() {
        assert!(has_fowner("Name:\tx\nCapEff:\t000001ffffffffff\n"));
        assert!(has_fowner("CapPrm:\t0\nCapEff:\t0000000000000008\n"));
        assert!(!has_fowner("CapPrm:\t8\nCapEff:\t0000000000000007\n"));
        assert!(!has_fowner("") && !acts_as_owner(0));
    }
}
