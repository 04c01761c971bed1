//! The configuration: `/etc/weft/weft.toml` and its drop-ins, for what runs as a service.
//!
//! A key is an option of `weft serve` or `weft attach`, by its name on the command line, so that
//! both take the same values, and a new option is a key at once. What is read becomes arguments
//! that stand before those of the command line, which come later and so win. All errors are
//! found before any is told, each with its file, line and key.

mod read;
mod settings;

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use clap::Parser as _;
use weft_cli::failure::{Failure, Outcome};

use crate::cli::{AttachArgs, Cli, Command, ServeArgs};
use crate::daemon::check_cache_bytes;

pub use read::Wrong;
pub use settings::Settings;

/// The default path of the configuration.
pub const FILE: &str = "/etc/weft/weft.toml";
/// The default place to search for members.
const MEMBERS: &str = "/dev";

/// A configuration, and the files that it comes from.
#[derive(Debug)]
pub struct Config {
    /// The files, in the order in which they are read.
    pub files: Vec<PathBuf>,
    /// Their combined contents.
    pub settings: Settings,
}

impl Config {
    /// Reads the configuration at `file` and its drop-ins: `weft.d/*.toml` beside `weft.toml`.
    /// Without `file` it is the machine's, which need not exist.
    ///
    /// # Errors
    /// All that is wrong with it.
    pub fn read(file: Option<&Path>) -> Result<Self, Vec<Wrong>> {
        let (files, mut wrong) =
            read::files(file.unwrap_or_else(|| Path::new(FILE)), file.is_some());
        let mut settings = Settings::default();
        for file in &files {
            match read::text(file) {
                Ok(text) => wrong.extend(settings.add(file, &text)),
                Err(one) => wrong.push(one),
            }
        }
        wrong.extend(settings.check());
        if wrong.is_empty() {
            wrong.extend(check_together(&settings));
        }
        match wrong.is_empty() {
            true => Ok(Self { files, settings }),
            false => Err(wrong),
        }
    }
}

/// What only all keys together show.
fn check_together(settings: &Settings) -> Option<Wrong> {
    let line = ["weft", "serve"].map(OsString::from).into_iter().chain(serve_line(settings));
    let Ok(Cli { command: Command::Serve(args), .. }) = Cli::try_parse_from(line) else {
        return None;
    };
    let of = |key: &str, outcome: Outcome| settings.blame(key, outcome.err()?);
    of("listen", args.tcp.check())
        .or_else(|| of("cache", check_cache_bytes(args.cache.size.unwrap_or(0))))
}

/// The arguments of `weft serve` that a configuration stands for.
pub fn serve_line(settings: &Settings) -> Vec<OsString> {
    let mut line = settings.arguments(&["serve"]);
    if !settings.has(&["serve"], "members") {
        line.push(MEMBERS.into());
    }
    line
}

/// All errors of a configuration as one failure.
pub fn failure(wrong: &[Wrong]) -> Failure {
    let lines: Vec<String> = wrong.iter().map(ToString::to_string).collect();
    Failure::new(lines.join("\n"))
        .hint("docs/configuration.md lists the keys; `weft config check` looks again")
}

/// The arguments of `weft serve` together with the configuration: if a file is named, or if no
/// member is.
///
/// # Errors
/// If the configuration is wrong.
pub fn of_serve(args: &ServeArgs) -> Result<ServeArgs, Failure> {
    if args.config.is_none() && !args.members.is_empty() {
        return Ok(args.clone());
    }
    let config = Config::read(args.config.as_deref()).map_err(|wrong| failure(&wrong))?;
    let mut line = serve_line(&config.settings);
    if !args.members.is_empty() && !config.settings.has(&["serve"], "members") {
        // The command line names them.
        line.pop();
    }
    match together("serve", line)? {
        Command::Serve(args) => Ok(args),
        _ => Ok(args.clone()),
    }
}

/// The arguments of `weft attach` together with the configuration's settings of the array.
///
/// # Errors
/// If the configuration is wrong.
pub fn of_attach(args: AttachArgs) -> Result<AttachArgs, Failure> {
    let config = Config::read(None).map_err(|wrong| failure(&wrong))?;
    let line = config.settings.arguments(&["attach", &args.array]);
    if line.is_empty() {
        return Ok(args);
    }
    match together("attach", line)? {
        Command::Attach(args) => Ok(args),
        _ => Ok(args),
    }
}

/// This process's command, with `more` before its arguments.
fn together(command: &str, more: Vec<OsString>) -> Result<Command, Failure> {
    let mut line: Vec<OsString> = std::env::args_os().collect();
    let at = command_at(&line, command);
    line.splice(at..at, more);
    let cli = Cli::try_parse_from(line);
    cli.map(|cli| cli.command).map_err(|e| Failure::usage(settings::reason(&e)))
}

/// Where the arguments of `command` start: only options of all commands may precede it.
fn command_at(line: &[OsString], command: &str) -> usize {
    let is_command = |(at, word): &(usize, &OsString)| {
        *word == command && (*at < 2 || line[at - 1] != "--runtime-dir")
    };
    line.iter().enumerate().skip(1).find(is_command).map_or(line.len(), |(at, _)| at + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_begin_after_the_command() {
        let line = |words: &[&str]| words.iter().map(OsString::from).collect::<Vec<_>>();
        assert_eq!(command_at(&line(&["weft", "serve", "/dev"]), "serve"), 2);
        let other = line(&["weft", "--runtime-dir", "serve", "serve", "/dev"]);
        assert_eq!(command_at(&other, "serve"), 4);
    }
}
