//! Files that a package generates from the command line's definition: `nacre completions` and
//! `nacre man-pages`.

use std::path::Path;
use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::{Command, CommandFactory};
use clap_mangen::Man;

use crate::cli::{Cli, Completions, ManPages, mount_helper};
use crate::output::{self, outln};

/// The manual that the pages belong to.
const MANUAL: &str = "Nacre Manual";
/// Section of the pages of commands.
const COMMANDS: &str = "1";
/// Section of the pages of programs for administrators, such as mount(8)'s helpers.
const ADMINISTRATION: &str = "8";

/// Prints the completion script of a shell.
pub(crate) fn completions(args: &Completions) -> ExitCode {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut Cli::command(), "nacre", &mut script);
    output::write_bytes(&script);
    ExitCode::SUCCESS
}

/// Writes the manual pages into a directory.
pub(crate) fn man_pages(args: &ManPages) -> Result<ExitCode> {
    let pages = pages();
    for page in &pages {
        write(page, &args.dir)?;
    }
    outln!("{} pages in {}", pages.len(), args.dir.display());
    Ok(ExitCode::SUCCESS)
}

fn write(page: &Man, dir: &Path) -> Result<()> {
    page.generate_to(dir)
        .with_context(|| format!("cannot write {}", dir.join(page.get_filename()).display()))
        .map(drop)
}

/// The page of each command and each of its subcommands, and that of mount(8)'s helper.
fn pages() -> Vec<Man> {
    let mut nacre = Cli::command().disable_help_subcommand(true);
    nacre.build();
    let mut pages = Vec::new();
    add_pages(&nacre, &mut pages);
    pages.extend(mount_helper().map(|command| page(command, ADMINISTRATION)));
    pages
}

fn add_pages(command: &Command, pages: &mut Vec<Man>) {
    pages.push(page(command.clone(), COMMANDS));
    for subcommand in command.get_subcommands().filter(|c| !c.is_hide_set()) {
        add_pages(subcommand, pages);
    }
}

fn page(command: Command, section: &str) -> Man {
    Man::new(command)
        .section(section)
        .source(concat!("nacre ", env!("CARGO_PKG_VERSION")))
        .manual(MANUAL)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use std::collections::BTreeSet;

    /// The names of a command and of all commands below it, as their pages have them.
    fn collect_names(command: &Command, parents: &str, names: &mut BTreeSet<String>) {
        let name = format!("{parents}{}", command.get_name());
        for subcommand in command.get_subcommands() {
            collect_names(subcommand, &format!("{name}-"), names);
        }
        names.insert(name);
    }

    #[test]
    fn every_command_has_a_page_with_its_usage_and_options() {
        let dir = tempfile::tempdir().unwrap();
        pages()
            .iter()
            .try_for_each(|page| write(page, dir.path()))
            .unwrap();
        let mut names = BTreeSet::new();
        collect_names(&Cli::command(), "", &mut names);
        assert!(names.contains("nacre-lfs-setstripe"), "{names:?}");
        for name in &names {
            let page = std::fs::read_to_string(dir.path().join(format!("{name}.1"))).unwrap();
            for heading in [".SH NAME\n", ".SH SYNOPSIS\n", ".SH DESCRIPTION\n"] {
                assert!(page.contains(heading), "{name}: {heading}");
            }
            // roff has a backslash before each dash.
            assert!(page.contains(&name.replace('-', "\\-")), "{page}");
        }
        let helper = std::fs::read_to_string(dir.path().join("mount.nacre.8")).unwrap();
        assert!(helper.contains("mount.nacre"), "{helper}");
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), names.len() + 1);
    }

    #[test]
    fn completion_script_of_each_shell_names_the_subcommands() {
        for shell in [
            clap_complete::Shell::Bash,
            clap_complete::Shell::Zsh,
            clap_complete::Shell::Fish,
        ] {
            let mut script = Vec::new();
            clap_complete::generate(shell, &mut Cli::command(), "nacre", &mut script);
            let script = String::from_utf8(script).unwrap();
            for word in ["install-links", "setstripe", "token-file"] {
                assert!(script.contains(word), "{shell}: {word}");
            }
        }
    }
}
