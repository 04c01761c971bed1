//! `weft completions`: what a shell has to know to complete weft's command lines.

use clap::CommandFactory as _;
use serde_json::json;
use weft_cli::failure::{Failure, Outcome};
use weft_cli::output::{answer, out};

use crate::cli::{Cli, CompletionsArgs};

/// `weft completions`.
pub fn completions(args: &CompletionsArgs, json: bool) -> Outcome {
    // Into memory first: the generator panics if it cannot write.
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut Cli::command(), "weft", &mut script);
    let script = String::from_utf8(script).map_err(|e| Failure::new(e.to_string()))?;
    if json {
        return answer(&json!({ "shell": args.shell.to_string(), "script": script }));
    }
    out!("{script}");
    Ok(())
}
