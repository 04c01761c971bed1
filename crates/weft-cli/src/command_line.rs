//! Reading a command line, as all of weft's programs do: what clap cannot parse is reported in
//! plain words, as JSON to a program that asks for it, and with the exit code of a wrong command
//! line.

use std::ffi::OsString;
use std::process::ExitCode;

use clap::Parser;

use crate::failure::{self, Failure, Outcome};
use crate::output;

/// Reads a command line, the program's name first, and runs what it asks for.
pub fn run<C: Parser>(
    line: impl IntoIterator<Item = OsString>,
    json: impl Fn(&C) -> bool,
    run: impl FnOnce(&C) -> Outcome,
) -> ExitCode {
    match read::<C>(line) {
        Ok(command) => output::run(json(&command), || run(&command)),
        Err(error) => not_understood(&error),
    }
}

fn read<C: Parser>(line: impl IntoIterator<Item = OsString>) -> Result<C, clap::Error> {
    let matches = with_negative_numbers(C::command()).try_get_matches_from(line)?;
    C::from_arg_matches(&matches)
}

/// A negative number is refused as a value, not taken for an unknown option.
fn with_negative_numbers(command: clap::Command) -> clap::Command {
    let names: Vec<String> =
        command.get_subcommands().map(|command| command.get_name().to_owned()).collect();
    let command = command.allow_negative_numbers(true);
    names
        .into_iter()
        .fold(command, |command, name| command.mut_subcommand(name, with_negative_numbers))
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

/// Checks the help of a program's commands, for the test of each program.
///
/// A paragraph is one line, which clap wraps to the terminal; lines that must not be wrapped, such
/// as examples, fit into 80 columns. Every command shows examples that use it.
///
/// # Panics
/// If that does not hold.
pub fn check_help(command: clap::Command) {
    command.clone().debug_assert();
    for command in command.get_subcommands() {
        let help = help_after(command);
        let example = format!("weft {}", command.get_name());
        assert!(help.contains("Examples:"), "{} has no examples", command.get_name());
        assert!(help.contains(&example), "the examples of {example} do not use it");
    }
    let mut commands = vec![command];
    while let Some(command) = commands.pop() {
        let help = help_after(&command);
        let lines: Vec<&str> = help.lines().collect();
        for (line, next) in lines.iter().zip(lines.iter().skip(1).chain([&""])) {
            let is_text = |line: &str| line.starts_with(|c: char| !c.is_whitespace());
            let name = command.get_name();
            assert!(is_text(line) || line.chars().count() <= 80, "{name}: {line}");
            let heads = line.ends_with(':') || line.contains(":  ");
            assert!(heads || !is_text(line) || !is_text(next), "{name}: {line}");
        }
        commands.extend(command.get_subcommands().cloned());
    }
}

fn help_after(command: &clap::Command) -> String {
    command.get_after_help().map(ToString::to_string).unwrap_or_default()
}
