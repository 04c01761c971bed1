//! Instructions, counted by valgrind.

use std::process::Command;

const WITHOUT_STRING_INSTRUCTIONS: &str =
    "glibc.cpu.x86_rep_movsb_threshold=1073741824:glibc.cpu.x86_rep_stosb_threshold=1073741824";

/// Runs this program under callgrind with a word as its argument; the number of instructions in
/// functions whose name holds `counted`, for each of `requests`.
///
/// Callgrind counts a string instruction once for each byte that it moves, so the C library is told
/// to copy and fill with vector instructions.
///
/// # Errors
/// If there is no valgrind, or the program fails.
pub fn instructions(word: &str, counted: &str, requests: u64) -> Result<u64, String> {
    let program = std::env::current_exe().map_err(|error| error.to_string())?;
    let output = Command::new("valgrind")
        .args(["--tool=callgrind", "--callgrind-out-file=/dev/null"])
        .arg(format!("--toggle-collect=*{counted}*"))
        .env("GLIBC_TUNABLES", WITHOUT_STRING_INSTRUCTIONS)
        .arg(program)
        .arg(word)
        .output()
        .map_err(|error| format!("valgrind: {error} (apt install valgrind)"))?;
    let report = String::from_utf8_lossy(&output.stderr);
    let collected = report.lines().find_map(|line| line.split_once("Collected : "));
    let count = collected.and_then(|(_, n)| n.trim().parse::<u64>().ok());
    count.map(|n| n / requests).ok_or_else(|| report.into_owned())
}
