//! `nacre demo`: starts a file system, copies source trees into it, compares the copies, restarts
//! the file system, compares again, and reports measurements. The command runs `nacre up` and
//! `nacre down` as a user does.

mod tree;

use std::fs::{self, File};
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use super::temp_instance::TempInstance;
use crate::cli::Demo;
use crate::daemon;
use crate::output::{outln, shell_word};
use crate::process;
use tree::Count;

/// Size of the file for the bandwidth test, in bytes.
const BIG_FILE_BYTES: u64 = 256 << 20;
/// Bytes of each read or write of the bandwidth test.
const PIECE_BYTES: usize = 1 << 20;
/// Number of files to create, stat and unlink.
const SMALL_FILES: u32 = 5000;
/// Maximum number of differences to print.
const DIFFERENCES_SHOWN_MAX: usize = 10;

/// Runs the command.
pub(crate) fn run(args: Demo) -> Result<ExitCode> {
    let trees = trees(&args)?;
    let dir = std::env::temp_dir().join(format!("nacre-demo-{}", std::process::id()));
    let mut instance = TempInstance::new(dir.clone());
    let outcome = demonstrate(&mut instance, &trees, args.osts);
    if outcome.is_ok() && args.keep {
        instance.keep_running();
        outln!(
            "\nThe file system stays up:\n  cd {}\n  nacre status\n  nacre down --dir {}",
            shell_word(&dir.join("mnt")),
            shell_word(&dir)
        );
        return outcome.map(|()| ExitCode::SUCCESS);
    }
    instance.stop_if_running()?;
    fs::remove_dir_all(&dir).with_context(|| format!("cannot remove {}", dir.display()))?;
    outcome?;
    outln!(
        "\nTo start your own file system:\n  nacre up                  a file system in ~/.local/share/nacre/default, mounted on its subdirectory mnt\n  nacre status              running file systems and mounts\n  nacre lfs df              space of each target\n  nacre lctl get_param '*'  parameters\n  nacre down                stop it; the data stays"
    );
    Ok(ExitCode::SUCCESS)
}

/// The source trees to copy. Skips a missing default tree; fails if a tree from the command line is
/// missing.
fn trees(args: &Demo) -> Result<Vec<PathBuf>> {
    let default = [PathBuf::from("."), PathBuf::from("/usr/include")];
    let chosen = if args.trees.is_empty() {
        default.to_vec()
    } else {
        args.trees.clone()
    };
    let mut trees = chosen
        .iter()
        .map(|t| daemon::make_absolute(t))
        .collect::<Result<Vec<_>>>()?;
    if args.trees.is_empty() {
        trees.retain(|t| t.is_dir());
    }
    if let Some(missing) = trees.iter().find(|t| !t.is_dir()) {
        bail!("{} is not a directory", missing.display());
    }
    Ok(trees)
}

/// Prints the duration and result of a step.
fn print_step(step: &str, duration: Duration, result: &str) {
    outln!(
        "{step:<22} {:>9.1} ms   {result}",
        duration.as_secs_f64() * 1000.0
    );
}

fn per_second(n: u64, duration: Duration) -> u64 {
    (n as f64 / duration.as_secs_f64().max(1e-9)) as u64
}

fn mib_per_second(bytes: u64, duration: Duration) -> u64 {
    per_second(bytes, duration) >> 20
}

fn demonstrate(instance: &mut TempInstance, trees: &[PathBuf], osts: u32) -> Result<()> {
    let mount = instance.dir().join("mnt");
    let duration = instance.up(osts)?;
    print_step(
        "nacre up",
        duration,
        &format!("1 MDT, {osts} OSTs, mounted on {}", mount.display()),
    );
    for (i, tree) in trees.iter().enumerate() {
        let mut count = Count::default();
        let start_time = Instant::now();
        tree::copy(tree, &mount.join(format!("tree{i}")), &mut count)?;
        let duration = start_time.elapsed();
        let rate = per_second(count.entries(), duration);
        let result = format!(
            "{}: {} entries, {} MiB, {rate}/s",
            tree.display(),
            count.entries(),
            count.bytes >> 20
        );
        print_step("copy in", duration, &result);
    }
    compare_all(trees, &mount)?;
    let duration = instance.down()? + instance.up(osts)?;
    print_step("nacre down, nacre up", duration, "the data is still there:");
    compare_all(trees, &mount)?;
    measure_small_files(&mount.join("small"))?;
    measure_big_file(&mount.join("big"))?;
    if let Some(bytes) = process::in_dir(instance.dir())?.and_then(|r| bench::resident_bytes(r.pid)) {
        outln!(
            "{:<22} {:>9.1} MiB",
            "memory of the process",
            bytes as f64 / f64::from(1 << 20)
        );
    }
    Ok(())
}

fn compare_all(trees: &[PathBuf], mount: &Path) -> Result<()> {
    let (mut count, mut differences) = (Count::default(), Vec::new());
    let start_time = Instant::now();
    for (i, tree) in trees.iter().enumerate() {
        tree::compare(
            tree,
            &mount.join(format!("tree{i}")),
            &mut count,
            &mut differences,
        )?;
    }
    let duration = start_time.elapsed();
    if !differences.is_empty() {
        differences.truncate(DIFFERENCES_SHOWN_MAX);
        bail!(
            "the copy differs from the source:\n  {}",
            differences.join("\n  ")
        );
    }
    print_step(
        "compare",
        duration,
        &format!("{} entries are the same, byte by byte", count.entries()),
    );
    Ok(())
}

/// Creates, stats and unlinks files.
fn measure_small_files(dir: &Path) -> Result<()> {
    fs::create_dir(dir)?;
    let names: Vec<PathBuf> = (0..SMALL_FILES).map(|i| dir.join(format!("f{i}"))).collect();
    let run_on_each = |step: &str, operation: &dyn Fn(&Path) -> std::io::Result<()>| -> Result<()> {
        let start_time = Instant::now();
        for name in &names {
            operation(name).with_context(|| format!("cannot {step} {}", name.display()))?;
        }
        let duration = start_time.elapsed();
        print_step(
            step,
            duration,
            &format!(
                "{SMALL_FILES} files, {}/s",
                per_second(SMALL_FILES.into(), duration)
            ),
        );
        Ok(())
    };
    run_on_each("create", &|name| File::create_new(name).map(drop))?;
    run_on_each("stat", &|name| fs::metadata(name).map(drop))?;
    run_on_each("unlink", &|name| fs::remove_file(name))
}

/// Writes a file, syncs it, and reads it back.
fn measure_big_file(path: &Path) -> Result<()> {
    let piece: Vec<u8> = (0..PIECE_BYTES).map(|i| (i * 31 % 251) as u8).collect();
    let start_time = Instant::now();
    let mut file = File::create_new(path)?;
    for _ in 0..BIG_FILE_BYTES / PIECE_BYTES as u64 {
        file.write_all(&piece)?;
    }
    file.sync_all()?;
    let duration = start_time.elapsed();
    print_step(
        "write, fsync",
        duration,
        &format!(
            "{} MiB, {} MiB/s",
            BIG_FILE_BYTES >> 20,
            mib_per_second(BIG_FILE_BYTES, duration)
        ),
    );
    drop(file);
    let start_time = Instant::now();
    let mut file = File::open(path)?;
    let mut read_back = vec![0; PIECE_BYTES];
    for _ in 0..BIG_FILE_BYTES / PIECE_BYTES as u64 {
        file.read_exact(&mut read_back)?;
        if read_back != piece {
            bail!("{}: the data read differs from the data written", path.display());
        }
    }
    let duration = start_time.elapsed();
    print_step(
        "read",
        duration,
        &format!(
            "{} MiB, {} MiB/s",
            BIG_FILE_BYTES >> 20,
            mib_per_second(BIG_FILE_BYTES, duration)
        ),
    );
    Ok(())
}
