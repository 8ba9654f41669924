//! Reads the counts of all running processes with targets.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Result, bail};

use crate::activity::Activity;
use crate::cmd::{ANSWER_MAX, status};
use crate::control::{self, Request};
use crate::output::describe;
use crate::process::ProcessRecord;

/// A process: its id, its start time and the boot that the time counts from.
pub(super) type ProcessKey = (u32, u64, String);

/// The counts of all processes at one time.
#[derive(Debug, Clone, Default)]
pub(super) struct Sample {
    pub(super) processes: BTreeMap<ProcessKey, Activity>,
    /// Processes without an answer, each with the reason.
    pub(super) unread: BTreeMap<u32, String>,
}

impl Sample {
    /// Time since an earlier sample, in seconds; 0 if no process is in both.
    pub(super) fn seconds_since(&self, before: &Sample) -> f64 {
        let times = self.processes.iter().filter_map(|(key, now)| {
            let earlier = before.processes.get(key)?;
            Some(now.clock.saturating_sub(earlier.clock))
        });
        times.max().unwrap_or(0) as f64 / 1e6
    }

    /// The processes that the rates since the earlier sample do not include, each with the
    /// reason.
    pub(super) fn uncounted_processes(&self, before: &Sample) -> Vec<String> {
        let ids = |a: &Sample, b: &Sample| -> BTreeSet<u32> {
            let missing = a.processes.keys().filter(|key| !b.processes.contains_key(*key));
            missing.map(|(pid, ..)| *pid).collect()
        };
        let unread = self
            .unread
            .iter()
            .map(|(pid, why)| format!("process {pid}: {why}"));
        let started = ids(self, before)
            .into_iter()
            .map(|pid| format!("process {pid} was not read before this interval"));
        let ended = ids(before, self)
            .into_iter()
            .filter(|pid| !self.unread.contains_key(pid))
            .map(|pid| format!("process {pid} ended in this interval"));
        unread.chain(started).chain(ended).collect()
    }
}

/// Reads the counts of the processes that `nacre status` shows, with the counts by directory only
/// if `directories`.
///
/// # Errors
///
/// No process runs, none has targets, or none answers.
pub(super) fn take(directories: bool) -> Result<Sample> {
    let processes = status::all_processes();
    if processes.is_empty() {
        bail!("no process of nacre runs here: start targets with nacre up or nacre serve");
    }
    let servers: Vec<ProcessRecord> = processes.into_iter().filter(|p| !p.targets.is_empty()).collect();
    if servers.is_empty() {
        bail!("no process of nacre here has targets: run nacre top on a host with targets");
    }
    let mut sample = Sample::default();
    for (process, answer) in servers.iter().zip(ask_all(&servers, directories)) {
        match answer {
            Ok(activity) => {
                let key = (process.pid, process.start_ticks, process.boot_id.clone());
                sample.processes.insert(key, activity);
            }
            // A process that ends does not answer.
            Err(_) if !process.is_alive() => {}
            Err(e) => drop(sample.unread.insert(process.pid, describe(&e))),
        }
    }
    if sample.processes.is_empty() {
        match sample.unread.first_key_value() {
            Some((pid, why)) => bail!("process {pid} does not answer: {why}"),
            None => {
                bail!("the processes with targets have ended: start targets with nacre up or nacre serve")
            }
        }
    }
    Ok(sample)
}

/// Asks the processes at the same time, so that one without an answer does not delay the others.
fn ask_all(processes: &[ProcessRecord], directories: bool) -> Vec<Result<Activity>> {
    let ask = |process: &ProcessRecord| -> Result<Activity> {
        control::decode(control::call(
            &process.control,
            &Request::Activity { directories },
            ANSWER_MAX,
        )?)
    };
    std::thread::scope(|scope| {
        let threads: Vec<_> = processes.iter().map(|p| scope.spawn(move || ask(p))).collect();
        let join = |thread: std::thread::ScopedJoinHandle<'_, Result<Activity>>| {
            thread
                .join()
                .unwrap_or_else(|_| Err(anyhow::anyhow!("the thread that asks the process panicked")))
        };
        threads.into_iter().map(join).collect()
    })
}
