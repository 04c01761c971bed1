//! The commands of the laboratory are a program of its own, `weft-lab`, so that the daemon carries
//! neither models nor simulator: `weft lab …` runs it, as git runs its subcommands.
//!
//! It is looked for beside this program, then in `PATH`.

use std::ffi::{OsStr, OsString};
use std::io::ErrorKind;
use std::os::unix::process::CommandExt as _;
use std::path::PathBuf;
use std::process::Command;

use clap::Args;
use weft_cli::failure::{Failure, Outcome};

const PROGRAM: &str = "weft-lab";

/// What follows the name of a command of the laboratory.
#[derive(Debug, Args)]
#[command(disable_help_flag = true)]
pub struct LaboratoryArgs {
    /// Passed on to weft-lab; `--help` lists them
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, value_name = "ARGUMENTS")]
    pub arguments: Vec<OsString>,
}

/// Becomes `weft-lab COMMAND ARGUMENTS`.
///
/// # Errors
/// If that cannot be started.
pub fn run(command: &str, args: &LaboratoryArgs, json: bool) -> Outcome {
    let json = json.then_some(OsStr::new("--json"));
    let mut last = None;
    for program in [beside(), Some(PROGRAM.into())].into_iter().flatten() {
        let error = Command::new(&program).args(json).arg(command).args(&args.arguments).exec();
        let missing = error.kind() == ErrorKind::NotFound;
        last = Some(error);
        if !missing {
            break;
        }
    }
    let error = last.map_or_else(String::new, |error| format!(": {error}"));
    Err(Failure::new(format!("`weft {command}` is part of the program {PROGRAM}, which did not start{error}"))
        .hint("install it beside weft: cargo build --release -p weft-lab, or cargo install --path crates/weft-lab"))
}

fn beside() -> Option<PathBuf> {
    Some(std::env::current_exe().ok()?.with_file_name(PROGRAM))
}
