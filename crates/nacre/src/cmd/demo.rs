//! `nacre demo`: starts a file system, copies source trees into it, compares the copies, restarts
//! the file system, compares again, and reports measurements. The command runs `nacre up` and
//! `nacre down` as a user does.

mod tree;

use std::fs::{self, File};
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use serde::Serialize;

use super::temp_instance::TempInstance;
use crate::cli::Demo;
use crate::daemon;
use crate::interrupt::{self, Interrupted};
use crate::output::{errln, outln, shell_word};
use crate::process;
use crate::progress::ProgressLine;
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
    let mut demonstration = Demonstration {
        instance: TempInstance::new(dir.clone()),
        stop: interrupt::stop_flag()?,
        json: args.json,
        steps: Vec::new(),
    };
    let outcome = demonstration.run(&trees, args.osts);
    if args.json {
        outln!("{}", serde_json::to_string_pretty(&demonstration.steps)?);
    }
    if outcome.is_ok() && args.keep {
        demonstration.instance.keep_running();
        if !args.json {
            outln!(
                "\nThe file system stays up:\n  cd {}\n  nacre status\n  nacre down --dir {}",
                shell_word(&dir.join("mnt")),
                shell_word(&dir)
            );
        }
        return outcome.map(|()| ExitCode::SUCCESS);
    }
    demonstration.instance.stop_if_running()?;
    fs::remove_dir_all(&dir).with_context(|| format!("cannot remove {}", dir.display()))?;
    match outcome {
        Err(e) if e.is::<Interrupted>() => {
            errln!("nacre: interrupted; the temporary file system was removed");
            return Ok(interrupt::exit_code());
        }
        outcome => outcome?,
    }
    if !args.json {
        outln!(
            "\nTo start your own file system:\n  nacre up                  a file system in ~/.local/share/nacre/default, mounted on its subdirectory mnt\n  nacre status              running file systems and mounts\n  nacre lfs df              space of each target\n  nacre lctl get_param '*'  parameters\n  nacre down                stop it; the data stays"
        );
    }
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

/// A step of the demonstration.
#[derive(Debug, Serialize)]
struct Step {
    step: &'static str,
    milliseconds: f64,
    /// Number of entries or files.
    #[serde(skip_serializing_if = "Option::is_none")]
    count: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    bytes: Option<u64>,
    /// The result as text.
    result: String,
}

fn per_second(n: u64, duration: Duration) -> u64 {
    (n as f64 / duration.as_secs_f64().max(1e-9)) as u64
}

/// The file system, and the steps so far.
struct Demonstration {
    instance: TempInstance,
    /// Set by Ctrl-C.
    stop: Arc<AtomicBool>,
    json: bool,
    steps: Vec<Step>,
}

impl Demonstration {
    fn run(&mut self, trees: &[PathBuf], osts: u32) -> Result<()> {
        let mount = self.instance.dir().join("mnt");
        let duration = self.instance.up(osts)?;
        let result = format!("1 MDT, {osts} OSTs, mounted on {}", mount.display());
        self.end_step("nacre up", duration, (None, None), result);
        for (i, tree) in trees.iter().enumerate() {
            self.copy(tree, &mount.join(format!("tree{i}")))?;
        }
        self.compare_all(trees, &mount)?;
        interrupt::check(&self.stop)?;
        let duration = self.instance.down()? + self.instance.up(osts)?;
        let result = "the data is still there:".to_owned();
        self.end_step("nacre down, nacre up", duration, (None, None), result);
        self.compare_all(trees, &mount)?;
        self.measure_small_files(&mount.join("small"))?;
        self.measure_big_file(&mount.join("big"))?;
        let process = process::in_dir(self.instance.dir())?;
        if let Some(bytes) = process.and_then(|r| bench::resident_bytes(r.pid)) {
            self.end_memory_step(bytes);
        }
        Ok(())
    }

    /// Prints the duration and result of a step, unless the output is JSON.
    fn end_step(
        &mut self,
        step: &'static str,
        duration: Duration,
        (count, bytes): (Option<u64>, Option<u64>),
        result: String,
    ) {
        let milliseconds = duration.as_secs_f64() * 1000.0;
        if !self.json {
            outln!("{step:<22} {milliseconds:>9.1} ms   {result}");
        }
        self.steps.push(Step {
            step,
            milliseconds,
            count,
            bytes,
            result,
        });
    }

    fn end_memory_step(&mut self, bytes: u64) {
        let (step, mib) = ("memory of the process", bytes as f64 / f64::from(1 << 20));
        if !self.json {
            outln!("{step:<22} {mib:>9.1} MiB");
        }
        self.steps.push(Step {
            step,
            milliseconds: 0.0,
            count: None,
            bytes: Some(bytes),
            result: format!("{mib:.1} MiB"),
        });
    }

    fn copy(&mut self, tree: &Path, to: &Path) -> Result<()> {
        let total = tree::count_entries(tree)?;
        let text = format!("copy {}", tree.display());
        let mut count = Count::default();
        let start_time = Instant::now();
        let mut progress = ProgressLine::new();
        tree::copy(tree, to, &mut count, &mut |done| {
            progress.update(&text, done, Some(total));
            Ok(interrupt::check(&self.stop)?)
        })?;
        drop(progress);
        let duration = start_time.elapsed();
        let (entries, bytes) = (count.entries(), count.bytes);
        let result = format!(
            "{}: {entries} entries, {} MiB, {}/s",
            tree.display(),
            bytes >> 20,
            per_second(entries, duration)
        );
        self.end_step("copy in", duration, (Some(entries), Some(bytes)), result);
        Ok(())
    }

    fn compare_all(&mut self, trees: &[PathBuf], mount: &Path) -> Result<()> {
        let total = trees
            .iter()
            .map(|tree| tree::count_entries(tree))
            .sum::<Result<u64>>()?;
        let (mut count, mut differences) = (Count::default(), Vec::new());
        let start_time = Instant::now();
        let mut progress = ProgressLine::new();
        for (i, tree) in trees.iter().enumerate() {
            let copy = mount.join(format!("tree{i}"));
            tree::compare(tree, &copy, &mut count, &mut differences, &mut |done| {
                progress.update("compare", done, Some(total));
                Ok(interrupt::check(&self.stop)?)
            })?;
        }
        drop(progress);
        let duration = start_time.elapsed();
        if !differences.is_empty() {
            differences.truncate(DIFFERENCES_SHOWN_MAX);
            bail!(
                "the copy differs from the source:\n  {}",
                differences.join("\n  ")
            );
        }
        let entries = count.entries();
        let result = format!("{entries} entries are the same, byte by byte");
        self.end_step("compare", duration, (Some(entries), Some(count.bytes)), result);
        Ok(())
    }

    /// Creates, stats and unlinks files.
    fn measure_small_files(&mut self, dir: &Path) -> Result<()> {
        fs::create_dir(dir)?;
        let names: Vec<PathBuf> = (0..SMALL_FILES).map(|i| dir.join(format!("f{i}"))).collect();
        type Operation = fn(&Path) -> std::io::Result<()>;
        let steps: [(&'static str, Operation); 3] = [
            ("create", |name| File::create_new(name).map(drop)),
            ("stat", |name| fs::metadata(name).map(drop)),
            ("unlink", |name| fs::remove_file(name)),
        ];
        for (step, operation) in steps {
            let start_time = Instant::now();
            for name in &names {
                interrupt::check(&self.stop)?;
                operation(name).with_context(|| format!("cannot {step} {}", name.display()))?;
            }
            let duration = start_time.elapsed();
            let rate = per_second(SMALL_FILES.into(), duration);
            let result = format!("{SMALL_FILES} files, {rate}/s");
            self.end_step(step, duration, (Some(SMALL_FILES.into()), None), result);
        }
        Ok(())
    }

    /// Writes a file, syncs it, and reads it back.
    fn measure_big_file(&mut self, path: &Path) -> Result<()> {
        let piece: Vec<u8> = (0..PIECE_BYTES).map(|i| (i * 31 % 251) as u8).collect();
        let start_time = Instant::now();
        let mut file = File::create_new(path)?;
        for _ in 0..BIG_FILE_BYTES / PIECE_BYTES as u64 {
            interrupt::check(&self.stop)?;
            file.write_all(&piece)?;
        }
        file.sync_all()?;
        self.end_big_file_step("write, fsync", start_time.elapsed());
        drop(file);
        let start_time = Instant::now();
        let mut file = File::open(path)?;
        let mut read_back = vec![0; PIECE_BYTES];
        for _ in 0..BIG_FILE_BYTES / PIECE_BYTES as u64 {
            interrupt::check(&self.stop)?;
            file.read_exact(&mut read_back)?;
            if read_back != piece {
                bail!("{}: the data read differs from the data written", path.display());
            }
        }
        self.end_big_file_step("read", start_time.elapsed());
        Ok(())
    }

    fn end_big_file_step(&mut self, step: &'static str, duration: Duration) {
        let rate = per_second(BIG_FILE_BYTES, duration) >> 20;
        let result = format!("{} MiB, {rate} MiB/s", BIG_FILE_BYTES >> 20);
        self.end_step(step, duration, (None, Some(BIG_FILE_BYTES)), result);
    }
}
