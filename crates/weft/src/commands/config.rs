//! `weft config`: looks at the configuration without using it.

use std::ffi::OsString;

use serde_json::json;
use weft_cli::failure::Outcome;
use weft_cli::output::{answer, outln};

use crate::cli::{ConfigAction, ConfigArgs};
use crate::config::{self, Config, FILE};

/// `weft config`.
pub fn config(args: &ConfigArgs, json: bool) -> Outcome {
    let ConfigAction::Check { file } = &args.action;
    let config = Config::read(file.as_deref()).map_err(|wrong| config::failure(&wrong))?;
    let line = config::serve_line(&config.settings);
    let line: Vec<String> = line.iter().map(|word: &OsString| word.display().to_string()).collect();
    if json {
        return answer(&json!({ "files": config.files, "serve": line }));
    }
    for file in &config.files {
        outln!("{}: correct", file.display());
    }
    if config.files.is_empty() {
        outln!("there is no {FILE}: the usual is done");
    }
    outln!("weft serve {}", line.join(" "));
    Ok(())
}
