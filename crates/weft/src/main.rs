//! `weft`: the command line and the daemon.
//!
//! [`cli`] defines the commands and options. [`commands`] carries out those that need no daemon,
//! and sends the others to one through [`control`]. [`daemon`] serves arrays to NBD clients and,
//! through [`weft_fuse`], to the kernel's loop driver. Engine, network, disks, the laboratory with
//! its commands, and the demo are in crates of their own; the texts for people are in [`report`].
#![forbid(unsafe_code)]
// `println!` and its kind panic when they cannot write: see weft_cli::output.
#![deny(clippy::print_stdout, clippy::print_stderr)]

mod block;
mod cli;
mod commands;
mod control;
mod daemon;
mod device;
mod group;
mod limited_log;
mod members;
mod report;
mod runtime_dir;

use std::process::ExitCode;

use weft_cli::failure::{self, Failure, Outcome};
use weft_cli::output;
use weft_lab::commands as lab;

use cli::{Cli, Command};
use runtime_dir::RuntimeDir;

#[global_allocator]
static POOL: weft_rt::pool::Pool = weft_rt::pool::Pool;

fn main() -> ExitCode {
    match Cli::read() {
        Ok(cli) => output::run(cli.json, || run(&cli)),
        Err(error) => not_understood(&error),
    }
}

/// The command line could not be parsed, or only asks for help or the version. A program that asked
/// for JSON gets the error as JSON.
fn not_understood(error: &clap::Error) -> ExitCode {
    let json = std::env::args_os().skip(1).take_while(|arg| arg != "--").any(|arg| arg == "--json");
    if !error.use_stderr() {
        error.exit();
    }
    let text = plain_words(&error.render().to_string());
    if !json {
        output::write_err(format_args!("{text}"));
        return failure::USAGE.into();
    }
    let (message, hint) = text.split_once("\n\n").unwrap_or((&text, ""));
    let message = message.trim().trim_start_matches("error: ");
    output::run(true, || Err(Failure::usage(message).hint(hint.trim())))
}

/// clap's messages about numbers are written for programmers: replaces them.
fn plain_words(text: &str) -> String {
    text.replace("invalid digit found in string", "give a whole number, 0 or more")
        .replace("cannot parse integer from empty string", "give a whole number, 0 or more")
        .replace(&format!(" is not in 1..{}", u64::MAX), ": give 1 or more")
}

fn run(cli: &Cli) -> Outcome {
    let json = cli.json;
    let dir = || RuntimeDir::choose(cli.runtime_dir.as_deref());
    match &cli.command {
        Command::Create(args) => commands::create::create(args, json),
        Command::Fs(args) => commands::fs::fs(args, json),
        Command::Examine(args) => commands::examine::examine(args, json),
        Command::Plan(args) => lab::plan(args, json),
        Command::Lab(args) => lab::lab(args, json),
        Command::Trace(args) => lab::trace(args, json),
        Command::Replay(args) => lab::replay(args, json),
        Command::Simulate(args) => lab::simulate(args, json),
        Command::Demo(args) => weft_demo::demo(args, json),
        Command::Serve(args) => daemon::serve(args, &dir()?, json),
        Command::Status(args) => commands::status::status(args, &dir()?, json),
        Command::Attach(args) => commands::attach::attach(args, &dir()?, json),
        Command::Detach(args) => commands::attach::detach(args, &dir()?, json),
        Command::Fail(args) => commands::manage::fail(args, &dir()?, json),
        Command::Add(args) => commands::manage::add(args, &dir()?, json),
        Command::Replace(args) => commands::manage::replace(args, &dir()?, json),
        Command::Reshape(args) => commands::reshape::reshape(args, &dir()?, json),
        Command::Shrink(args) => commands::reshape::shrink(args, &dir()?, json),
        Command::Rebuild(args) => commands::manage::rebuild(args, &dir()?, json),
        Command::Scrub(args) => commands::manage::scrub(args, &dir()?, json),
        Command::Cache(args) => commands::cache::cache(args, &dir()?, json),
        Command::Throttle(args) => commands::manage::throttle(args, &dir()?, json),
        Command::Remove(args) => commands::manage::remove(args, &dir()?, json),
        Command::Start(args) => commands::manage::start(args, &dir()?, json),
        Command::Wipe(args) => commands::wipe::wipe(args, dir, json),
        Command::Stop(args) => commands::manage::stop(args, &dir()?, json),
    }
}
