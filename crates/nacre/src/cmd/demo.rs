//! `nacre demo`: starts a file system, copies source trees into it, compares them, restarts it,
//! compares again, and reports measurements. It runs the same commands as a user.

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
use crate::output::outln;
use crate::process;
use tree::Count;

/// Size of the file for the bandwidth test, in bytes.
const BIG_FILE: u64 = 256 << 20;
const PIECE: usize = 1 << 20;
/// Number of files to create, stat and unlink.
const SMALL_FILES: u32 = 5000;
/// Number of differences to print.
const SHOWN_MAX: usize = 10;

/// Runs the command.
pub(crate) fn run(args: Demo) -> Result<ExitCode> {
    let trees = trees(&args)?;
    let dir = std::env::temp_dir().join(format!("nacre-demo-{}", std::process::id()));
    let mut instance = TempInstance::new(dir.clone());
    let outcome = show(&mut instance, &trees, args.osts);
    if outcome.is_ok() && args.keep {
        instance.keep_running();
        outln!(
            "\nThe file system stays up:\n  cd {}\n  nacre status\n  nacre down --dir {}",
            dir.join("mnt").display(),
            dir.display()
        );
        return outcome.map(|()| ExitCode::SUCCESS);
    }
    instance.stop_if_running()?;
    fs::remove_dir_all(&dir).with_context(|| format!("cannot remove {}", dir.display()))?;
    outcome?;
    outln!(
        "\nTo start your own file system:\n  nacre up                  a file system in ~/.local/share/nacre/default, mounted on mnt there\n  nacre status              running file systems and mounts\n  nacre lfs df              space of each target\n  nacre lctl get_param '*'  parameters\n  nacre down                stop it; the data stays"
    );
    Ok(ExitCode::SUCCESS)
}

fn trees(args: &Demo) -> Result<Vec<PathBuf>> {
    let here = PathBuf::from(".");
    let default = [here, PathBuf::from("/usr/include")];
    let chosen = if args.trees.is_empty() {
        default.to_vec()
    } else {
        args.trees.clone()
    };
    let mut trees = chosen
        .iter()
        .map(|t| daemon::absolute(t))
        .collect::<Result<Vec<_>>>()?;
    if args.trees.is_empty() {
        trees.retain(|t| t.is_dir());
    }
    if let Some(missing) = trees.iter().find(|t| !t.is_dir()) {
        bail!("{} is not a directory", missing.display());
    }
    Ok(trees)
}

fn line(what: &str, took: Duration, found: &str) {
    outln!("{what:<22} {:>9.1} ms   {found}", took.as_secs_f64() * 1000.0);
}

fn per_second(n: u64, took: Duration) -> u64 {
    (n as f64 / took.as_secs_f64().max(1e-9)) as u64
}

fn mib_per_second(bytes: u64, took: Duration) -> u64 {
    per_second(bytes, took) >> 20
}

fn show(instance: &mut TempInstance, trees: &[PathBuf], osts: u32) -> Result<()> {
    let mount = instance.dir().join("mnt");
    let took = instance.up(osts)?;
    line(
        "nacre up",
        took,
        &format!("1 MDT, {osts} OSTs, mounted on {}", mount.display()),
    );
    for (i, tree) in trees.iter().enumerate() {
        let mut count = Count::default();
        let start_time = Instant::now();
        tree::copy(tree, &mount.join(format!("tree{i}")), &mut count)?;
        let took = start_time.elapsed();
        let rate = per_second(count.entries(), took);
        let found = format!(
            "{}: {} entries, {} MiB, {rate}/s",
            tree.display(),
            count.entries(),
            count.bytes >> 20
        );
        line("copy in", took, &found);
    }
    compare_all(trees, &mount)?;
    let took = instance.down()? + instance.up(osts)?;
    line("nacre down, nacre up", took, "the data is still there:");
    compare_all(trees, &mount)?;
    small_files(&mount.join("small"))?;
    big_file(&mount.join("big"))?;
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
    let took = start_time.elapsed();
    if !differences.is_empty() {
        differences.truncate(SHOWN_MAX);
        bail!(
            "the copy differs from the source:\n  {}",
            differences.join("\n  ")
        );
    }
    line(
        "compare",
        took,
        &format!("{} entries are the same, byte by byte", count.entries()),
    );
    Ok(())
}

fn small_files(dir: &Path) -> Result<()> {
    fs::create_dir(dir)?;
    let names: Vec<PathBuf> = (0..SMALL_FILES).map(|i| dir.join(format!("f{i}"))).collect();
    let timed = |what: &str, each: &dyn Fn(&Path) -> std::io::Result<()>| -> Result<()> {
        let start_time = Instant::now();
        for name in &names {
            each(name).with_context(|| format!("{}", name.display()))?;
        }
        let took = start_time.elapsed();
        line(
            what,
            took,
            &format!("{SMALL_FILES} files, {}/s", per_second(SMALL_FILES.into(), took)),
        );
        Ok(())
    };
    timed("create", &|name| File::create_new(name).map(drop))?;
    timed("stat", &|name| fs::metadata(name).map(drop))?;
    timed("unlink", &|name| fs::remove_file(name))
}

fn big_file(path: &Path) -> Result<()> {
    let piece: Vec<u8> = (0..PIECE).map(|i| (i * 31 % 251) as u8).collect();
    let start_time = Instant::now();
    let mut file = File::create_new(path)?;
    for _ in 0..BIG_FILE / PIECE as u64 {
        file.write_all(&piece)?;
    }
    file.sync_all()?;
    let took = start_time.elapsed();
    line(
        "write, fsync",
        took,
        &format!("{} MiB, {} MiB/s", BIG_FILE >> 20, mib_per_second(BIG_FILE, took)),
    );
    drop(file);
    let start_time = Instant::now();
    let mut file = File::open(path)?;
    let mut back = vec![0; PIECE];
    for _ in 0..BIG_FILE / PIECE as u64 {
        file.read_exact(&mut back)?;
        if back != piece {
            bail!("{}: the data read differs from the data written", path.display());
        }
    }
    let took = start_time.elapsed();
    line(
        "read",
        took,
        &format!("{} MiB, {} MiB/s", BIG_FILE >> 20, mib_per_second(BIG_FILE, took)),
    );
    Ok(())
}
