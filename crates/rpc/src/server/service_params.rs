//! The parameters of a service, such as `mds.MDS.mdt.stats`, `threads_max` and `nrs_policies`.

use super::nrs::{Policy, show_classes, show_policies, show_rules};
use super::partition::ServicePartition;
use super::service::Service;
use super::stats::{self, PartitionStats};
use params::{Group, Param, Registry, Stats, Value};
use std::fmt::Write;
use std::sync::{Arc, Weak};
use std::time::SystemTime;

/// The prefix of a service's parameters, as in Lustre.
fn prefix(name: &str) -> String {
    let parent = match name.split('_').next() {
        Some("mdt") => "mds.MDS",
        Some("ost") => "ost.OSS",
        Some("mgs") => "mgs.MGS",
        _ => "ldlm.services",
    };
    format!("{parent}.{name}")
}

/// Registers the parameters of a service until the group is dropped.
pub(super) fn register(service: &Arc<Service>, registry: &Registry) -> Group {
    let me = Arc::downgrade(service);
    let read = |show: fn(&Arc<Service>) -> String| {
        let me = me.clone();
        move || me.upgrade().map(|s| show(&s)).unwrap_or_default()
    };
    let write = |set: fn(&Arc<Service>, &str) -> Result<(), String>| {
        let me: Weak<Service> = me.clone();
        move |text: &str| me.upgrade().map_or(Ok(()), |s| set(&s, text))
    };
    let stats = {
        let me = me.clone();
        move || {
            me.upgrade()
                .map_or(Value::Text(String::new()), |s| stats_of(&s).into())
        }
    };
    let mut group = registry.group(prefix(service.name));
    group
        .add(
            "stats",
            Param::read_write(stats, write(clear_stats)).about(
                "statistics of all partitions: wait time, queue depth, operations; any write resets them",
            ),
        )
        .add(
            "cpt_stats",
            Param::read_only(read(show_cpts))
                .about("statistics of each partition: queue, wait time, depth, service time"),
        )
        .add(
            "threads_min",
            Param::read_only(read(|s| (s.threads_min * s.parts.len()).to_string()))
                .about("minimum of threads on all partitions"),
        )
        .add(
            "threads_max",
            Param::read_write(
                read(|s| sum_over_parts(s, |p| p.queue.lock().threads()).to_string()),
                write(set_threads),
            )
            .about("maximum of requests handled concurrently on all partitions"),
        )
        .add(
            "threads_started",
            Param::read_only(read(|s| {
                sum_over_parts(s, |p| p.queue.lock().active_max.max(s.threads_min)).to_string()
            }))
            .about("highest number of requests handled concurrently so far, on all partitions; at least threads_min"),
        )
        .add(
            "nrs_policies",
            Param::read_write(read(show_nrs), write(set_nrs))
                .about("scheduling policy: fifo, or tbf followed by nid, jobid, uid, gid, opcode or nothing"),
        )
        .add(
            "nrs_tbf_rule",
            Param::read_write(read(show_tbf_rules), write(set_tbf_rule))
                .about("TBF rules: start NAME CONDITION rate=N, change NAME rate=N, stop NAME"),
        )
        .add(
            "nrs_tbf_classes",
            Param::read_only(read(show_tbf_classes))
                .about("TBF classes: requests, how many of them waited for a token, and how long"),
        );
    group
}

fn sum_over_parts(service: &Arc<Service>, value: impl Fn(&ServicePartition) -> usize) -> usize {
    service.parts.iter().map(|p| value(p)).sum()
}

fn stats_of(service: &Service) -> Stats {
    let parts: Vec<&PartitionStats> = service.parts.iter().map(|p| &p.stats).collect();
    stats::sum_up(&parts, *service.stats_since.lock())
}

fn clear_stats(service: &Arc<Service>, _: &str) -> Result<(), String> {
    *service.stats_since.lock() = SystemTime::now();
    service.parts.iter().for_each(|p| p.stats.clear());
    Ok(())
}

fn show_cpts(service: &Arc<Service>) -> String {
    let mut out = String::new();
    for part in &service.parts {
        let stats = part.stats();
        // Writing to a string does not fail.
        let _ = writeln!(
            out,
            "CPT {}: threads {} active {} queued {} dropped {}",
            stats.cpt, stats.threads, stats.active, stats.queued, stats.dropped
        );
        for (name, unit, sums) in part.stats.summary() {
            sums.write_line(&mut out, name, unit);
        }
    }
    out
}

fn set_threads(service: &Arc<Service>, text: &str) -> Result<(), String> {
    let parts = service.parts.len();
    let (min, max) = (service.threads_min * parts, 8 * service.threads_at_start * parts);
    let n = text.trim().parse().ok().filter(|n| (min..=max).contains(n));
    let n: usize = n.ok_or_else(|| {
        format!("expected a whole number from {min} to {max}, for all {parts} partitions together")
    })?;
    for part in &service.parts {
        part.queue.lock().set_threads(n / parts);
    }
    wake_slots(service);
    Ok(())
}

/// Spawns slots for requests that can run after a change of limits or rules.
fn wake_slots(service: &Arc<Service>) {
    for part in &service.parts {
        service.spawn_slots(part);
        if part.needs_token_waiter() {
            service.spawn_token_waiter(part);
        }
    }
}

fn show_nrs(service: &Arc<Service>) -> String {
    let (mut ordinary, mut high_priority) = (super::nrs::Load::default(), super::nrs::Load::default());
    for part in &service.parts {
        let queue = part.queue.lock();
        let (waiting, handling) = (queue.waiting(), queue.handling());
        ordinary.queued += waiting.ordinary;
        ordinary.active += handling.ordinary;
        high_priority.queued += waiting.high_priority;
        high_priority.active += handling.high_priority;
    }
    show_policies(&service.policy.lock(), ordinary, high_priority)
}

fn set_nrs(service: &Arc<Service>, text: &str) -> Result<(), String> {
    let new = Policy::parse(text, service.tbf_rate)?;
    let mut policy = service.policy.lock();
    if let (Policy::Tbf { kind: old, .. }, Policy::Tbf { kind, .. }) = (&*policy, &new)
        && old == kind
    {
        // The same policy keeps its rules.
        return Ok(());
    }
    *policy = new;
    apply_policy(service, &policy);
    Ok(())
}

fn set_tbf_rule(service: &Arc<Service>, text: &str) -> Result<(), String> {
    let mut policy = service.policy.lock();
    policy.execute(text, service.tbf_rate)?;
    apply_policy(service, &policy);
    Ok(())
}

fn apply_policy(service: &Arc<Service>, policy: &Policy) {
    let now = cpt::now();
    for part in &service.parts {
        part.queue.lock().set_policy(policy, service.tbf_depth, now);
    }
    wake_slots(service);
}

/// The rules or the classes, as `select` chooses, of each partition with a TBF policy.
fn tbf_lines(service: &Arc<Service>, select: fn((String, String)) -> String) -> Vec<(usize, String)> {
    let partition_lines = |p: &Arc<ServicePartition>| Some((p.cpt.0, select(p.queue.lock().show_tbf()?)));
    service.parts.iter().filter_map(partition_lines).collect()
}

fn show_tbf_rules(service: &Arc<Service>) -> String {
    show_rules(&tbf_lines(service, |(rules, _)| rules))
}

fn show_tbf_classes(service: &Arc<Service>) -> String {
    show_classes(&tbf_lines(service, |(_, classes)| classes))
}
