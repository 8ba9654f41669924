//! `cargo xtask xfstests`: the generic tests of xfstests in its groups `quick` and `auto`, on two
//! mounted file systems of Nacre.

use std::fs::Permissions;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;
use std::process::{Command, Stdio};

use super::exceptions::{Exceptions, Outcome};
use super::{build_nacre, parse_arguments, start_instance};
use crate::stage::{Stage, root};

/// The exceptions.
pub(super) const EXCEPTIONS: &str = include_str!("../../exceptions/xfstests.txt");

/// The groups that run if no test is named.
const GROUPS: &str = "quick,auto";

/// generic/003 expects the last access time after a new mount. As in Lustre, the MDT stores access
/// times at least 60 seconds apart by default, so that reads cause few changes on its disk. All
/// tests run with this setting.
const STORE_EACH_ATIME: &str = "mdd.*.atime_diff=0";

/// Runs `check` in a mount namespace of its own. mount(8) runs Nacre's mount helper with a PATH of
/// its own, so the script mounts `$0`, the directory with `nacre`, over a directory of that PATH.
/// The script unmounts at the end, because a mount's process keeps the namespace.
const CHECK: &str = r#"mount --bind "$0" /usr/local/sbin || exit 1
./check "$@"
umount -q -l "$TEST_DIR" "$SCRATCH_MNT""#;

/// A `df` that shows the type `fuse` instead of `fuse.nacre`: xfstests does not expect subtypes.
const DF: &str = "#!/bin/sh\n/usr/bin/df \"$@\" | sed 's/fuse\\.nacre/fuse      /'\n";

/// Builds xfstests in the checkout, and runs its generic tests, or those that `args` names
/// (`generic/013`, `-g quick`).
pub(crate) fn run(args: &[String]) -> Result<(), String> {
    let arguments = parse_arguments("xfstests", args)?;
    let exceptions = Exceptions::parse(EXCEPTIONS)?;
    build(&arguments.source)?;
    let bin = build_nacre()?;
    let work = root().join("target/conformance");
    let [test_dir, scratch_dir, results, helper_dir] =
        ["xfs-test-mnt", "xfs-scratch-mnt", "xfs-results", "xfs-bin"].map(|name| work.join(name));
    let failed = |e: std::io::Error| format!("!!! {}: {e}", work.display());
    for dir in [&test_dir, &scratch_dir, &results, &helper_dir] {
        std::fs::create_dir_all(dir).map_err(failed)?;
    }
    let (helper, df) = (helper_dir.join("nacre"), helper_dir.join("df"));
    let _ = std::fs::remove_file(&helper);
    symlink(bin.join("nacre"), &helper).map_err(failed)?;
    std::fs::write(&df, DF).map_err(failed)?;
    std::fs::set_permissions(&df, Permissions::from_mode(0o755)).map_err(failed)?;
    let test = start_instance(&bin, "xfs-test", "127.77.1.1", false)?;
    let scratch = start_instance(&bin, "xfs-scratch", "127.77.1.2", false)?;
    for instance in [&test, &scratch] {
        instance.set_param(STORE_EACH_ATIME)?;
    }
    println!("=== outputs are in {}", results.display());
    let path = std::env::var("PATH").unwrap_or_default();
    let mut check = Command::new("unshare");
    check
        .args(["--mount", "--propagation", "private", "sh", "-c", CHECK])
        .arg(&helper_dir)
        .current_dir(&arguments.source)
        .env("PATH", format!("{}:{path}:/usr/sbin:/sbin", helper_dir.display()))
        .envs([("FSTYP", "fuse"), ("FUSE_SUBTYP", ".nacre")])
        .envs([("TEST_DEV", test.source()), ("SCRATCH_DEV", scratch.source())])
        .envs([("TEST_DIR", &test_dir), ("SCRATCH_MNT", &scratch_dir)])
        .env("RESULT_BASE", &results)
        .stdin(Stdio::null());
    // The script wants its options before the tests.
    let skipped: Vec<&str> = exceptions.skipped_tests().collect();
    if !skipped.is_empty() {
        check.args(["-e", &skipped.join(",")]);
    }
    match arguments.selected {
        [] => check.args(["-g", GROUPS]),
        selected => check.args(selected),
    };
    let outcomes = run_check(check)?;
    exceptions.judge(&outcomes)
}

fn build(source: &Path) -> Result<(), String> {
    if source.join("ltp/fsstress").is_file() {
        return Ok(());
    }
    let jobs = std::thread::available_parallelism().map_or(1, usize::from);
    let mut make = Command::new("make");
    make.current_dir(source).args(["-j", &jobs.to_string()]);
    Stage::new("build xfstests").run(make)
}

/// Runs `check`, shows its output, and collects the outcomes.
fn run_check(mut check: Command) -> Result<Vec<(String, Outcome)>, String> {
    let failed = |e: std::io::Error| format!("!!! xfstests' check: {e}");
    let mut child = check.stdout(Stdio::piped()).spawn().map_err(failed)?;
    let mut summary = Summary::default();
    for line in child
        .stdout
        .take()
        .map(BufReader::new)
        .into_iter()
        .flat_map(BufRead::lines)
    {
        let line = line.map_err(failed)?;
        println!("{line}");
        summary.add(&line);
    }
    // The exit status repeats the summary.
    child.wait().map_err(failed)?;
    if summary.ran.is_empty() {
        return Err("!!! xfstests' check ran no test".to_owned());
    }
    Ok(summary.outcomes())
}

/// The lists of tests in the last lines of `check`.
#[derive(Default)]
struct Summary {
    ran: Vec<String>,
    not_run: Vec<String>,
    failures: Vec<String>,
}

impl Summary {
    fn add(&mut self, line: &str) {
        for (start, tests) in [
            ("Ran: ", &mut self.ran),
            ("Not run: ", &mut self.not_run),
            ("Failures: ", &mut self.failures),
        ] {
            if let Some(names) = line.strip_prefix(start) {
                tests.extend(names.split_whitespace().map(str::to_owned));
            }
        }
    }

    fn outcomes(self) -> Vec<(String, Outcome)> {
        let outcome = |test: &String| match () {
            () if self.failures.contains(test) => Outcome::Failed,
            () if self.not_run.contains(test) => Outcome::Unsupported,
            () => Outcome::Passed,
        };
        self.ran
            .iter()
            .map(|test| (test.clone(), outcome(test)))
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::{Outcome, Summary};

    #[test]
    fn summary_lines_give_the_outcomes() {
        let mut summary = Summary::default();
        for line in [
            "generic/001 4s ...  5s",
            "Ran: generic/001 generic/002 generic/003",
            "Not run: generic/002",
            "Failures: generic/003",
            "Failed 1 of 3 tests",
        ] {
            summary.add(line);
        }
        let outcomes = summary.outcomes().into_iter().map(|(_, outcome)| outcome);
        let expected = [Outcome::Passed, Outcome::Unsupported, Outcome::Failed];
        assert_eq!(outcomes.collect::<Vec<_>>(), expected);
    }
}
