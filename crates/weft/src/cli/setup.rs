//! Commands that set weft up on a machine.

use std::path::PathBuf;

use clap::{Args, Subcommand};
use clap_complete::Shell;

/// `weft config`.
#[derive(Debug, Args)]
#[command(after_help = "\
`weft serve` without members, and so weft.service, follows /etc/weft/weft.toml and the files \
/etc/weft/weft.d/*.toml. This shows all faults in them, with file, line and key, or the command \
line that they stand for.

Examples:
  weft config check
  weft config check ./weft.toml")]
pub struct ConfigArgs {
    /// What to do.
    #[command(subcommand)]
    pub action: ConfigAction,
}

/// What `weft config` does.
#[derive(Debug, Subcommand)]
pub enum ConfigAction {
    /// Show all that is wrong, or the command line that the configuration stands for
    Check {
        /// The configuration; its drop-ins are beside it, in a folder of its name with `.d`
        /// [default: /etc/weft/weft.toml]
        file: Option<PathBuf>,
    },
}

/// `weft completions`.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  weft completions bash > /usr/share/bash-completion/completions/weft
  weft completions zsh > /usr/share/zsh/vendor-completions/_weft
  weft completions fish > ~/.config/fish/completions/weft.fish")]
pub struct CompletionsArgs {
    /// The shell
    #[arg(value_enum)]
    pub shell: Shell,
}

/// `weft man`.
#[derive(Debug, Args)]
#[command(after_help = "\
Creates the folder's subfolders man1 and man8, and replaces pages that are there.

Examples:
  weft man /usr/local/share/man && man weft-fs-mount
  weft man pages && man pages/man1/weft.1")]
pub struct ManArgs {
    /// A folder of manual pages
    #[arg(value_name = "FOLDER")]
    pub folder: PathBuf,
}

/// `weft udev`.
#[derive(Debug, Args)]
#[command(after_help = "\
Prints the properties of a member of an array, of a disk of a file system, or of the block device of \
an attached array, as udev's rules import them. It exits with 1 for all other devices. With \
--announce it tells the running daemon, if there is one, that the device has appeared.

Examples:
  weft udev /dev/sdb
  weft udev --announce /dev/sdb")]
pub struct UdevArgs {
    /// The block device
    #[arg(value_name = "DEVICE")]
    pub device: PathBuf,
    /// Tell the daemon that it has appeared
    #[arg(long)]
    pub announce: bool,
}
