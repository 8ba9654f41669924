//! The names of Lustre's tools. The binary acts as a tool if it is called by the tool's name, for
//! example through a link that `nacre install-links` made.

use std::ffi::OsString;
use std::path::Path;

use clap::{CommandFactory, FromArgMatches, Parser};

use super::{Cli, Command};

/// The name of each tool, and the subcommand of `nacre` that replaces it.
pub(crate) const TOOLS: [(&str, &str); 7] = [
    ("lfs", "lfs"),
    ("lctl", "lctl"),
    ("lnetctl", "lnetctl"),
    ("lst", "lst"),
    ("mkfs.lustre", "mkfs"),
    ("mount.lustre", "mount"),
    ("mount.nacre", "mount"),
];

/// Inserts the subcommand for a binary that is called by a tool's name. Also inserts `mount` if the
/// first argument is a mount source, since mount(8) mounts the type `fuse.nacre` by
/// `nacre 10.0.0.1@tcp:/testfs /mnt -o OPTIONS`. Returns the command line, and whether it has an
/// inserted subcommand.
pub(super) fn insert_subcommand(args: impl Iterator<Item = OsString>) -> (Vec<OsString>, bool) {
    let mut args: Vec<OsString> = args.collect();
    let is_source = |arg: &OsString| arg.to_str().is_some_and(|a| client::parse_source(a).is_ok());
    let word = match args.first().and_then(|program| tool_of(program.as_ref())) {
        Some((_, word)) => Some(word),
        None if args.get(1).is_some_and(is_source) => Some("mount"),
        None => None,
    };
    if let Some(word) = word {
        args.insert(1, word.into());
    }
    (args, word.is_some())
}

/// The tool that has the name of this program, and the subcommand for it.
fn tool_of(program: &Path) -> Option<(&'static str, &'static str)> {
    let name = program.file_name()?.to_str()?;
    TOOLS.into_iter().find(|(tool, _)| *tool == name)
}

/// The command line of mount(8)'s helper for the type `nacre`.
pub(crate) fn mount_helper() -> Option<clap::Command> {
    tool_command("mount.nacre", "mount")
}

/// A subcommand under the name of a tool.
fn tool_command(tool: &'static str, word: &str) -> Option<clap::Command> {
    let mut nacre = Cli::command();
    let mut command = std::mem::take(nacre.find_subcommand_mut(word)?)
        .name(tool)
        .bin_name(tool)
        .display_name(tool)
        .version(env!("CARGO_PKG_VERSION"))
        .propagate_version(true);
    if word == "lfs" {
        command = command.mut_subcommand("find", |find| find.override_usage("lfs find PATH.. [TEST..]"));
    }
    Some(command)
}

/// Parses the result of [`insert_subcommand`]. If the binary is called by a tool's name, help and
/// errors have that name. An inserted `mount` is quiet unless it is verbose: mount(8) prints
/// nothing on success, and scripts rely on that.
pub(super) fn parse(args: &[OsString], is_inserted: bool) -> Result<Cli, clap::Error> {
    let mut cli = parse_by_name(args)?;
    if let Command::Mount(mount) = &mut cli.command {
        mount.quiet |= is_inserted && !mount.verbose;
    }
    Ok(cli)
}

fn parse_by_name(args: &[OsString]) -> Result<Cli, clap::Error> {
    let tool = args.first().and_then(|program| tool_of(program.as_ref()));
    let Some((tool, word)) = tool else {
        return Cli::try_parse_from(args);
    };
    let Some(mut command) = tool_command(tool, word) else {
        return Cli::try_parse_from(args);
    };
    let own_args = args.iter().take(1).chain(args.iter().skip(2));
    let mut matches = command.try_get_matches_from_mut(own_args)?;
    let parsed = match word {
        "lfs" => FromArgMatches::from_arg_matches_mut(&mut matches).map(Command::Lfs),
        "lctl" => FromArgMatches::from_arg_matches_mut(&mut matches).map(Command::Lctl),
        "lnetctl" => FromArgMatches::from_arg_matches_mut(&mut matches).map(Command::Lnetctl),
        "lst" => FromArgMatches::from_arg_matches_mut(&mut matches).map(Command::Lst),
        "mkfs" => FromArgMatches::from_arg_matches_mut(&mut matches).map(Command::Mkfs),
        _ => FromArgMatches::from_arg_matches_mut(&mut matches).map(Command::Mount),
    };
    parsed
        .map(|command| Cli { command })
        .map_err(|error| error.format(&mut command))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::{Command, TOOLS, insert_subcommand, parse};
    use clap::error::ErrorKind;

    fn parse_line(line: &str) -> Result<Command, clap::Error> {
        let (args, is_inserted) = insert_subcommand(line.split(' ').map(Into::into));
        parse(&args, is_inserted).map(|cli| cli.command)
    }

    #[test]
    fn help_and_version_have_the_name_of_the_tool() {
        for (tool, _) in TOOLS {
            let help = parse_line(&format!("/sbin/{tool} --help")).unwrap_err();
            assert_eq!(help.kind(), ErrorKind::DisplayHelp);
            let usage = help.to_string();
            let usage = usage.lines().find(|line| line.starts_with("Usage: ")).unwrap();
            let words: Vec<&str> = usage.split(' ').collect();
            assert_eq!(words[1], tool, "{usage}");
            assert!(words[2].starts_with(['[', '<', '-']), "{usage}");
            let version = parse_line(&format!("/sbin/{tool} --version")).unwrap_err();
            assert_eq!(version.kind(), ErrorKind::DisplayVersion);
            assert_eq!(
                version.to_string(),
                format!("{tool} {}\n", env!("CARGO_PKG_VERSION"))
            );
        }
        for (line, usage) in [
            ("lfs df --help", "Usage: lfs df ["),
            ("lfs find --help", "Usage: lfs find PATH.. ["),
            ("nacre lfs find --help", "Usage: nacre lfs find PATH.. ["),
            ("nacre lfs --help", "Usage: nacre lfs <"),
            ("lctl ping", "Usage: lctl ping "),
            ("mount.lustre", "Usage: mount.lustre <"),
        ] {
            let text = parse_line(line).unwrap_err().to_string();
            assert!(text.contains(usage), "{line}: {text}");
        }
    }

    #[test]
    fn tool_parses_arguments_as_its_subcommand_does() {
        let source = "10.0.0.1@tcp:/testfs /mnt";
        for line in [
            "lfs df -h",
            "lctl --dir d get_param a.b",
            "lnetctl net show",
            "lst show_session",
            "mkfs.lustre --mgs d",
            &format!("mount.lustre -q -o ro {source}"),
            &format!("mount.nacre -q {source}"),
        ] {
            let (inserted, _) = insert_subcommand(line.split(' ').map(Into::into));
            let words = inserted[1..].join(" ".as_ref()).into_string().unwrap();
            let expected = parse_line(&format!("nacre {words}")).unwrap();
            let command = parse_line(line).unwrap();
            assert_eq!(format!("{command:?}"), format!("{expected:?}"));
        }
    }

    fn insert_into_line(line: &str) -> String {
        let (args, _) = insert_subcommand(line.split(' ').map(Into::into));
        args.join(" ".as_ref()).to_string_lossy().into_owned()
    }

    #[test]
    fn name_of_a_tool_becomes_a_subcommand() {
        assert_eq!(insert_into_line("/usr/bin/lfs df -h"), "/usr/bin/lfs lfs df -h");
        assert_eq!(
            insert_into_line("mkfs.lustre --mgs d"),
            "mkfs.lustre mkfs --mgs d"
        );
        let helper = "mount.lustre -o ro 10.0.0.1@tcp:/testfs /mnt";
        assert_eq!(insert_into_line(helper), helper.replacen(' ', " mount ", 1));
    }

    #[test]
    fn mount_helper_is_quiet_without_the_verbose_option() {
        for (program, options, quiet) in [
            ("mount.lustre", "-o ro", true),
            ("mount.lustre", "-o ro -v", false),
            ("mount.lustre", "-v -v", false),
            ("mount.nacre", "-q", true),
            ("nacre", "-o ro", true),
            ("nacre", "-o ro -v", false),
            ("nacre mount", "-o ro", false),
            ("nacre mount", "-q", true),
        ] {
            let line = format!("{program} 10.0.0.1@tcp:/testfs /mnt {options}");
            let Ok(Command::Mount(mount)) = parse_line(&line) else {
                panic!("{line} is no mount");
            };
            assert_eq!(mount.quiet, quiet, "{line}");
        }
    }

    #[test]
    fn mount_source_as_first_argument_becomes_a_mount() {
        assert_eq!(
            insert_into_line("nacre 10.0.0.1@tcp:/testfs /mnt"),
            "nacre mount 10.0.0.1@tcp:/testfs /mnt"
        );
        assert_eq!(insert_into_line("nacre lfs df"), "nacre lfs df");
    }
}
