//! `weft cache`.

use weft_cli::failure::Outcome;

use crate::cli::CacheArgs;
use crate::control::client::Client;
use crate::control::protocol::{CacheReport, Request};
use crate::report;
use crate::runtime_dir::RuntimeDir;

use super::manage::done;

/// `weft cache`.
pub fn cache(args: &CacheArgs, dir: &RuntimeDir, json: bool) -> Outcome {
    let mut client = Client::connect(dir)?;
    let answer: Option<CacheReport> = client.ask(Request::Cache {
        array: args.array.clone(),
        max_bytes: args.size,
        policy: args.policy.map(|policy| policy.to_string()),
    })?;
    let lines = match &answer {
        Some(report) => report::cache::lines(report).join("\n"),
        None => "the cache is off".to_owned(),
    };
    done(json, &lines, &serde_json::json!({ "cache": answer }))
}
