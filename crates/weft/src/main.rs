//! `weft`: the command line and the daemon.
//!
//! [`cli`] defines the commands and options. [`commands`] executes commands that need no daemon,
//! and sends the other commands to one through [`control`]. [`daemon`] serves arrays to NBD clients
//! and, through [`weft_fuse`], to the kernel's loop driver. Engine, network, disks, planning and
//! the demo are in crates of their own, and the [`laboratory`] is a program of its own; the texts
//! for people are in [`report`].
#![forbid(unsafe_code)]
// `println!` and its kind panic when they cannot write: see weft_cli::output.
#![deny(clippy::print_stdout, clippy::print_stderr)]

mod background;
mod block;
mod cli;
mod commands;
mod config;
mod control;
mod daemon;
mod device;
mod group;
mod laboratory;
mod limited_log;
mod machine;
mod members;
mod report;
mod runtime_dir;

use std::process::ExitCode;

use weft_cli::command_line;
use weft_cli::failure::Outcome;
use weft_fuse::guard;

use cli::{Cli, Command, ServeArgs};
use runtime_dir::RuntimeDir;

#[global_allocator]
static POOL: weft_rt::pool::Pool = weft_rt::pool::Pool;

fn main() -> ExitCode {
    let line: Vec<_> = std::env::args_os().collect();
    if line.first().is_some_and(|name| name == guard::NAME) {
        return guard::run();
    }
    match commands::fs::helper_line(line) {
        Some(line) => command_line::run(line, |cli: &Cli| cli.json, run),
        None => ExitCode::SUCCESS,
    }
}

fn run(cli: &Cli) -> Outcome {
    let json = cli.json;
    let dir = || RuntimeDir::choose(cli.runtime_dir.as_deref());
    match &cli.command {
        Command::Create(args) => commands::create::create(args, dir().ok().as_ref(), json),
        Command::Fs(args) => commands::fs::fs(args, json),
        Command::Disks(args) => commands::disks::disks(args, json),
        Command::Examine(args) => commands::examine::examine(args, json),
        Command::Plan(args) => weft_plan::command::run(args, json),
        Command::Lab(args) => laboratory::run("lab", args, json),
        Command::Trace(args) => laboratory::run("trace", args, json),
        Command::Replay(args) => laboratory::run("replay", args, json),
        Command::Simulate(args) => laboratory::run("simulate", args, json),
        Command::Demo(args) => weft_demo::demo(args, json),
        Command::Udev(args) => commands::udev::udev(args, dir, json),
        Command::Config(args) => commands::config::config(args, json),
        Command::Completions(args) => commands::completions::completions(args, json),
        Command::Man(args) => commands::manual::manual(args, json),
        Command::Serve(args) => serve(&config::of_serve(args)?, &dir()?, json),
        Command::Status(args) => commands::status::status(args, &dir()?, json),
        Command::Attach(args) => {
            commands::attach::attach(&config::of_attach(args.clone())?, &dir()?, json)
        }
        Command::Detach(args) => commands::attach::detach(args, &dir()?, json),
        Command::Fail(args) => commands::manage::fail(args, &dir()?, json),
        Command::Add(args) => commands::manage::add(args, &dir()?, json),
        Command::Replace(args) => commands::manage::replace(args, &dir()?, json),
        Command::Reshape(args) => commands::reshape::reshape(args, &dir()?, json),
        Command::Shrink(args) => commands::reshape::shrink(args, &dir()?, json),
        Command::Rebuild(args) => commands::manage::rebuild(args, &dir()?, json),
        Command::Scrub(args) => commands::manage::scrub(args, &dir()?, json),
        Command::Cache(args) => commands::cache::cache(args, &dir()?, json),
        Command::Drill(args) => commands::drill::drill(args, &dir()?, json),
        Command::Throttle(args) => commands::manage::throttle(args, &dir()?, json),
        Command::Remove(args) => commands::manage::remove(args, &dir()?, json),
        Command::Start(args) => commands::manage::start(args, &dir()?, json),
        Command::Wipe(args) => commands::wipe::wipe(args, dir, json),
        Command::Stop(args) => commands::manage::stop(args, &dir()?, json),
    }
}

fn serve(args: &ServeArgs, dir: &RuntimeDir, json: bool) -> Outcome {
    if args.background && !background::is_detached() {
        if let Some(log) = &args.log {
            return background::start(std::env::args_os().collect(), log);
        }
        dir.make()?;
        return background::start(std::env::args_os().collect(), &dir.path().join("serve.log"));
    }
    if background::is_detached() {
        background::leave_session();
    }
    daemon::serve(args, dir, json)
}
