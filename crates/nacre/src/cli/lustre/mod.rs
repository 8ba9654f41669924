//! Every subcommand of Lustre's tools (releases 2.15 to 2.17), and how far Nacre supports it.
//!
//! The tables answer a subcommand that Nacre lacks with the reason and an alternative, and are the
//! source of `docs/manual/lustre-commands.md`.

mod lctl;
mod lfs;
mod lnetctl;
mod lst;
mod mkfs;

use std::ffi::OsString;

/// Options of the tools that take the next argument as their value. They precede or follow the
/// subcommand.
const OPTIONS_WITH_VALUE: [&str; 4] = ["--dir", "--mount", "--device", "--net"];

/// How `list-commands` differs from Lustre's.
const ONLY_SUPPORTED: &str = "lists the subcommands that Nacre has";
const LIST_COMMANDS: &str = "list-commands";
const LIST_COMMANDS_OPTION: &str = "--list-commands";
/// Names in a row of the output of `list-commands`.
const NAMES_IN_ROW: usize = 4;

/// A tool of Lustre, the subcommand of `nacre` that replaces it, and the subcommands of the tool.
struct Tool {
    name: &'static str,
    subcommand: &'static str,
    groups: &'static [Group],
}

impl Tool {
    /// Whether a subcommand follows the tool's name, rather than options and arguments only.
    fn has_subcommands(&self) -> bool {
        let mut names = self.groups.iter().flat_map(|group| group.names);
        names.any(|name| !name.starts_with('-'))
    }
}

/// Subcommands with the same support. A name can have several words, and can end in an option:
/// `net set`, `setstripe --pool`.
struct Group {
    names: &'static [&'static str],
    support: Support,
}

#[derive(Clone, Copy)]
#[cfg_attr(not(test), expect(dead_code, reason = "only the manual shows some fields"))]
enum Support {
    Works,
    /// Works, except for this difference.
    Differs(&'static str),
    /// The reason, and an alternative.
    Refused(&'static str, &'static str),
    /// Lustre's tool has no such subcommand.
    OnlyNacre(&'static str),
}

const fn works(names: &'static [&'static str]) -> Group {
    let support = Support::Works;
    Group { names, support }
}

const fn differs(names: &'static [&'static str], how: &'static str) -> Group {
    let support = Support::Differs(how);
    Group { names, support }
}

const fn refused(names: &'static [&'static str], reason: &'static str, alternative: &'static str) -> Group {
    let support = Support::Refused(reason, alternative);
    Group { names, support }
}

const fn only_nacre(names: &'static [&'static str], effect: &'static str) -> Group {
    let support = Support::OnlyNacre(effect);
    Group { names, support }
}

const TOOLS: [&Tool; 5] = [&lfs::TOOL, &lctl::TOOL, &lnetctl::TOOL, &lst::TOOL, &mkfs::TOOL];

/// The answer to a command line with a subcommand or option that Nacre refuses.
pub(crate) fn refusal(args: &[OsString]) -> Option<String> {
    let args: Vec<&str> = args.iter().map(|a| a.to_str().unwrap_or_default()).collect();
    let (subcommand, args) = args.get(1..)?.split_first()?;
    let tool = TOOLS.iter().find(|tool| tool.subcommand == *subcommand)?;
    let end = args.iter().position(|arg| *arg == "--").unwrap_or(args.len());
    let options = &args[..end];
    let words = words(args);
    // Options of the tool itself precede its subcommand. After the subcommand, the same words may
    // be its arguments.
    let first_word = words
        .first()
        .and_then(|word| options.iter().position(|arg| arg == word));
    let own_options = match first_word {
        Some(at) if tool.has_subcommands() => &options[..at],
        _ => options,
    };
    tool.groups.iter().find_map(|group| match group.support {
        Support::Refused(reason, alternative) => {
            let name = group.names.iter().find(|name| match name.starts_with('-') {
                true => is_called(name, &words, own_options),
                false => is_called(name, &words, options),
            })?;
            Some(format!("{} {name}: {reason}; {alternative}", tool.name))
        }
        _ => None,
    })
}

/// The answer to `list-commands` or `--list-commands` of one of the tools: the subcommands that
/// Nacre has, in Lustre's format.
pub(crate) fn list_commands(args: &[OsString]) -> Option<String> {
    let args: Vec<&str> = args.iter().map(|a| a.to_str().unwrap_or_default()).collect();
    let (subcommand, args) = args.get(1..)?.split_first()?;
    let tool = TOOLS.iter().find(|tool| tool.subcommand == *subcommand)?;
    let first = args.first().copied().unwrap_or_default();
    if !tool.has_subcommands() || !matches!(first, LIST_COMMANDS | LIST_COMMANDS_OPTION) {
        return None;
    }
    let mut names: Vec<&str> = Vec::new();
    for group in tool.groups {
        if matches!(group.support, Support::Refused(..)) {
            continue;
        }
        for name in group.names {
            let first = name.split(' ').next().unwrap_or_default();
            if !names.contains(&first) {
                names.push(first);
            }
        }
    }
    let mut out = String::new();
    for row in names.chunks(NAMES_IN_ROW) {
        let cells: String = row.iter().map(|name| format!("{name:<19} ")).collect();
        out.push_str(cells.trim_end());
        out.push('\n');
    }
    Some(out)
}

/// The answer to an unknown subcommand of one of the tools.
pub(crate) fn unknown_subcommand(args: &[OsString], word: &str) -> Option<String> {
    let tool = TOOLS.iter().find(|tool| *args[1] == *tool.subcommand)?;
    Some(format!(
        "{} has no subcommand '{word}': `nacre {} --help` lists all",
        tool.name, tool.subcommand
    ))
}

/// The arguments that are neither options nor values of the options before a subcommand.
fn words<'a>(args: &[&'a str]) -> Vec<&'a str> {
    let mut words = Vec::new();
    let mut is_value = false;
    for arg in args {
        let is_option = arg.starts_with('-') && arg.len() > 1;
        if !is_value && !is_option {
            words.push(*arg);
        }
        is_value = OPTIONS_WITH_VALUE.contains(arg);
    }
    words
}

/// Whether the arguments call this subcommand. If `name` ends in an option, the arguments must also
/// have this option. `args` are the arguments before `--`.
fn is_called(name: &str, words: &[&str], args: &[&str]) -> bool {
    let mut words = words.iter();
    name.split(' ').all(|part| match part.starts_with('-') {
        true => args.iter().any(|arg| is_option(arg, part)),
        false => words.next() == Some(&part),
    })
}

/// Whether an argument is this option, perhaps with an attached value.
fn is_option(arg: &str, option: &str) -> bool {
    match option.starts_with("--") {
        true => arg.split('=').next() == Some(option),
        // `-E1M`; two dashes begin a long option.
        false => arg.starts_with(option),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used)]
    use super::{Support, TOOLS, Tool, refusal};
    use crate::cli::Cli;
    use clap::{Command, CommandFactory};
    use std::fmt::Write;

    fn refusal_of(line: &str) -> Option<String> {
        let args: Vec<_> = line.split(' ').map(Into::into).collect();
        refusal(&args)
    }

    #[test]
    fn refused_subcommand_is_found_after_options() {
        let answer = refusal_of("nacre lctl --device 3 activate").unwrap();
        assert!(answer.starts_with("lctl activate: "), "{answer}");
        assert!(refusal_of("nacre lnetctl --dir /d net set --health 1").is_some());
    }

    #[test]
    fn refused_option_is_found_with_an_attached_value() {
        for (line, name) in [
            ("nacre lfs setstripe -z1M f", "lfs setstripe -z: "),
            ("nacre lfs setstripe -c 1 -pfast f", "lfs setstripe -p: "),
            ("nacre lfs setstripe --pool=fast f", "lfs setstripe --pool: "),
            ("nacre lfs setstripe -N2 f", "lfs setstripe -N: "),
            ("nacre lctl --ignore_errors", "lctl --ignore_errors: "),
            ("nacre lctl --device 3 --net tcp which_nid", "lctl --net: "),
            (
                "nacre mkfs --ost --fsname lus --backfstype=zfs d",
                "mkfs.lustre --backfstype: ",
            ),
            ("nacre mkfs --mgs d --dryrun", "mkfs.lustre --dryrun: "),
        ] {
            let answer = refusal_of(line).unwrap_or_default();
            assert!(answer.starts_with(name), "{line}: {answer}");
        }
    }

    #[test]
    fn list_commands_names_the_subcommands_that_nacre_has() {
        let list = |line: &str| {
            let args: Vec<_> = line.split(' ').map(Into::into).collect();
            super::list_commands(&args)
        };
        let lfs = list("nacre lfs list-commands").unwrap();
        assert!(
            lfs.starts_with("setstripe           getstripe           df "),
            "{lfs}"
        );
        assert!(!lfs.contains("quota"), "{lfs}");
        assert_eq!(list("nacre lfs --list-commands").unwrap(), lfs);
        let lnetctl = list("nacre lnetctl list-commands").unwrap();
        assert_eq!(
            lnetctl.matches("net ").count() - lnetctl.matches("lnet ").count(),
            1,
            "{lnetctl}"
        );
        for line in [
            "nacre lfs find list-commands",
            "nacre mkfs --list-commands",
            "nacre status",
        ] {
            assert_eq!(list(line), None, "{line}");
        }
    }

    #[test]
    fn names_of_refused_subcommands_are_accepted_as_arguments() {
        for line in [
            "nacre lfs df quota",
            "nacre lfs getstripe hsm_state",
            "nacre lfs setstripe -- --pool",
            "nacre lfs setstripe -- -z1M",
            "nacre lfs setstripe --stripe-count 1 f",
            "nacre lfs find t -name --list-commands",
            "nacre lctl ping 10.0.0.1@tcp --net",
            "nacre mkfs --mgs -- --dryrun",
            "nacre lnetctl net show",
            "nacre status quota",
            "nacre",
        ] {
            assert_eq!(refusal_of(line), None, "{line}");
        }
    }

    /// Appends the name of each subcommand, after its parents' names. If a subcommand's argument is
    /// one of a list of words, each word makes a name.
    fn collect_names(command: &Command, prefix: &str, out: &mut Vec<String>) {
        for sub in command.get_subcommands().filter(|c| c.get_name() != "help") {
            for name in std::iter::once(sub.get_name()).chain(sub.get_all_aliases()) {
                let path = format!("{prefix}{name}");
                if sub.has_subcommands() {
                    collect_names(sub, &format!("{path} "), out);
                    continue;
                }
                let words = sub.get_positionals().next().map(|arg| arg.get_possible_values());
                match words.filter(|words| !words.is_empty()) {
                    Some(words) => out.extend(words.iter().map(|w| format!("{path} {}", w.get_name()))),
                    None => out.push(path),
                }
            }
        }
    }

    #[test]
    fn tables_agree_with_the_command_line() {
        let cli = Cli::command();
        for tool in TOOLS.iter().filter(|tool| tool.subcommand != "mkfs") {
            let mut implemented = Vec::new();
            let command = cli.find_subcommand(tool.subcommand).expect("the tool");
            collect_names(command, "", &mut implemented);
            let mut listed = Vec::new();
            for group in tool.groups {
                // Names with '-' are options, with one exception.
                for name in group
                    .names
                    .iter()
                    .filter(|name| !name.contains('-') || **name == "cpt-of-nid")
                {
                    let expected = !matches!(group.support, Support::Refused(..));
                    let found = implemented.iter().any(|i| i == name);
                    assert_eq!(found, expected, "{} {name}", tool.name);
                    assert!(!listed.contains(name), "{} {name} is listed twice", tool.name);
                    listed.push(*name);
                }
            }
            for name in implemented {
                assert!(
                    listed.contains(&name.as_str()),
                    "{} {name} is not in the table",
                    tool.name
                );
            }
        }
    }

    /// The section of a tool in the manual.
    fn section(tool: &Tool) -> String {
        let mut out = format!("\n## {}\n\n| subcommand | in Nacre |\n|---|---|\n", tool.name);
        for group in tool.groups {
            let names: Vec<String> = group.names.iter().map(|n| format!("`{n}`")).collect();
            let text = match group.support {
                Support::Works => "works".to_owned(),
                Support::Differs(how) => format!("differs: {how}"),
                Support::Refused(reason, alternative) => format!("refused: {reason}; {alternative}"),
                Support::OnlyNacre(effect) => format!("only in Nacre: {effect}"),
            };
            writeln!(out, "| {} | {} |", names.join(", "), text.replace('|', "\\|")).unwrap();
        }
        out
    }

    /// The manual's tables must match the code. With NACRE_WRITE_MANUAL set, this test writes them.
    #[test]
    fn manual_lists_every_subcommand_of_lustre() {
        let path = concat!(
            env!("CARGO_MANIFEST_DIR"),
            "/../../docs/manual/lustre-commands.md"
        );
        let page = std::fs::read_to_string(path).expect("the page");
        let (head, _) = page.split_once("\n## ").expect("its first table");
        let sections: String = TOOLS.iter().map(|tool| section(tool)).collect();
        let expected = format!("{head}{sections}");
        if std::env::var_os("NACRE_WRITE_MANUAL").is_some() {
            std::fs::write(path, &expected).expect("the page is written");
        }
        let page = std::fs::read_to_string(path).expect("the page");
        assert_eq!(page, expected, "run this test with NACRE_WRITE_MANUAL=1");
    }
}
