//! Metrics for Prometheus: a view of the parameters' typed values.

mod exposition;
mod families;
mod server;

use std::collections::BTreeMap;
use std::time::UNIX_EPOCH;

use params::{KeyStats, Registry, Row, Stats, Value};

use exposition::{Exposition, Label};
use families as f;
pub(crate) use server::MetricsServer;

/// The parameters that metrics are made from.
const PATTERNS: &[&str] = &[
    "obdfilter.*.*",
    "obdfilter.*.exports.*.stats",
    "mdt.*.*",
    "mdt.*.exports.*.*",
    "osd-*.*.*",
    "ldlm.namespaces.*.*",
    "osc.*.*",
    "mdc.*.state",
    "osp.*.active",
    "osp.*.excluded",
    "mds.MDS.*.stats",
    "ost.OSS.*.stats",
    "mgs.MGS.*.stats",
    "ldlm.services.*.stats",
    "health_check",
];

/// A parameter that the patterns match and that metrics must not read: a read makes the MDT record
/// operations by directory, which costs each operation time.
const EXCLUDED_SUFFIX: &str = ".dir_stats";

/// The metrics of a process, in Prometheus' text format.
pub(crate) fn render(registry: &Registry) -> String {
    let mut out = Exposition::default();
    out.add(&f::BUILD_INFO, &[("version", env!("CARGO_PKG_VERSION"))], 1);
    let mut connected: BTreeMap<String, u64> = BTreeMap::new();
    for pattern in PATTERNS {
        for (name, value) in registry.values_where(pattern, |name| !name.ends_with(EXCLUDED_SUFFIX)) {
            if let Some((target, clients)) = clients_of_nid(&name, &value) {
                *connected.entry(target.to_owned()).or_default() += clients;
            }
            add_param(&mut out, &name, &value);
        }
    }
    for (target, clients) in connected {
        out.add(
            &f::CONNECTED_CLIENTS,
            &[("component", "mdt"), ("target", &target)],
            clients,
        );
    }
    out.finish()
}

/// The MDT, and the number of its clients at a NID, without servers, from
/// `mdt.TARGET.exports.NID.uuid`.
fn clients_of_nid<'a>(name: &'a str, value: &Value) -> Option<(&'a str, u64)> {
    let (target, leaf) = name.strip_prefix("mdt.")?.split_once('.')?;
    if !leaf.starts_with("exports.") || !leaf.ends_with(".uuid") {
        return None;
    }
    // A server connects under the UUID of a target's device.
    let is_client = |uuid: &&str| !uuid.ends_with("_UUID");
    let clients = value.to_string().lines().filter(is_client).count();
    Some((target, clients as u64))
}

/// Adds the metrics of one parameter.
fn add_param(out: &mut Exposition, name: &str, value: &Value) {
    let Some((parent, rest)) = name.split_once('.') else {
        if name == "health_check" {
            out.add(&f::HEALTHY, &[], u64::from(value.to_string() == "healthy"));
        }
        return;
    };
    let (device, leaf) = rest.split_once('.').unwrap_or((rest, ""));
    match parent {
        "obdfilter" => add_target(out, "ost", device, leaf, value),
        "mdt" => add_target(out, "mdt", device, leaf, value),
        "ldlm" if device == "namespaces" => add_namespace(out, leaf, value),
        "osc" | "mdc" | "osp" => add_import(out, device, leaf, value),
        _ if parent.starts_with("osd-") => add_space(out, device, leaf, value),
        _ => {
            if let (Value::Stats(stats), Some(service)) = (value, leaf.strip_suffix(".stats")) {
                add_service(out, service, stats);
            }
        }
    }
}

/// Adds the state of an import, and the dirty data and grant of a client for an OST.
fn add_import(out: &mut Exposition, device: &str, leaf: &str, value: &Value) {
    let labels = [("device", device)];
    match leaf {
        "active" => add_number(out, &f::CONNECTED, &labels, value),
        "state" => {
            let text = value.to_string();
            let state = text.lines().find_map(|l| l.strip_prefix("current_state: "));
            let connected = matches!(state, Some("FULL" | "IDLE"));
            out.add(&f::CONNECTED, &labels, connected.into());
        }
        "excluded" => out.add(
            &f::OST_EXCLUDED,
            &labels,
            u64::from(!value.to_string().is_empty()),
        ),
        "cur_dirty_bytes" => add_number(out, &f::CLIENT_DIRTY, &labels, value),
        "cur_grant_bytes" => add_number(out, &f::CLIENT_GRANT, &labels, value),
        _ => {}
    }
}

fn add_target(out: &mut Exposition, component: &'static str, target: &str, leaf: &str, value: &Value) {
    let labels = [("component", component), ("target", target)];
    match (leaf, value) {
        ("stats" | "md_stats", Value::Stats(stats)) => add_operations(out, component, target, stats),
        ("job_stats", Value::Jobs(jobs)) => {
            for job in jobs {
                add_job(out, component, target, job);
            }
        }
        ("num_exports", _) => {
            add_number(out, &f::CLIENTS, &labels, value);
            if component == "ost" {
                add_number(out, &f::EXPORTS, &labels, value);
            }
        }
        ("tot_granted", _) => {
            add_number(out, &f::EXPORTS_GRANTED, &labels, value);
            add_number(out, &f::GRANTED, &labels, value);
        }
        ("tot_dirty", _) => {
            add_number(out, &f::EXPORTS_DIRTY, &labels, value);
            add_number(out, &f::DIRTY, &labels, value);
        }
        ("tot_pending", _) => add_number(out, &f::EXPORTS_PENDING, &labels, value),
        ("scrub_damaged", _) => add_number(out, &f::DAMAGED_BLOCKS, &labels, value),
        ("eviction_count", _) => add_number(out, &f::EVICTIONS, &labels, value),
        ("reconnect_count", _) => add_number(out, &f::RECONNECTS, &labels, value),
        ("lu_cache_used", _) => add_number(out, &f::CACHED_INODES, &[("target", target)], value),
        (_, Value::Stats(stats)) => {
            let nid = leaf
                .strip_prefix("exports.")
                .and_then(|nid| nid.strip_suffix(".stats"));
            if let Some(nid) = nid {
                add_export(out, component, target, nid, stats);
            }
        }
        _ => {}
    }
}

/// Adds the operations of a target: with the names of the exporter for Lustre, and as histograms.
fn add_operations(out: &mut Exposition, component: &'static str, target: &str, stats: &Stats) {
    let labels = [("component", component), ("target", target)];
    let start = stats.since.duration_since(UNIX_EPOCH).unwrap_or_default();
    out.add(&f::STATS_START, &labels, start.as_secs());
    for row in &stats.rows {
        if row.sums.count == 0 {
            continue;
        }
        let operation = row.name.trim_end_matches("_bytes");
        let labels = [
            ("component", component),
            ("operation", operation),
            ("target", target),
        ];
        match row.name {
            "read_bytes" => add_bytes(
                out,
                [&f::READ_SAMPLES, &f::READ_MIN, &f::READ_MAX, &f::READ_BYTES],
                &labels,
                row,
            ),
            "write_bytes" => add_bytes(
                out,
                [&f::WRITE_SAMPLES, &f::WRITE_MIN, &f::WRITE_MAX, &f::WRITE_BYTES],
                &labels,
                row,
            ),
            _ if component == "mdt" => {
                out.add(&f::STATS, &labels, row.sums.count);
                out.add(&f::STATS_MIN, &labels, row.sums.min);
                out.add(&f::STATS_MAX, &labels, row.sums.max);
                out.add(&f::STATS_TIME, &labels, row.sums.sum);
            }
            _ => {}
        }
        if row.name != operation {
            out.add(&f::OPERATION_BYTES, &labels, row.sums.sum);
        }
        if let Some(buckets) = &row.buckets {
            out.add_histogram(&f::OPERATION_TIME, &labels, row.sums, buckets);
        }
    }
}

/// Adds number, minimum, maximum and sum of the sizes of reads or writes.
fn add_bytes(
    out: &mut Exposition,
    [samples, min, max, sum]: [&families::Family; 4],
    labels: &[Label<'_>],
    row: &Row,
) {
    out.add(samples, labels, row.sums.count);
    out.add(min, labels, row.sums.min);
    out.add(max, labels, row.sums.max);
    out.add(sum, labels, row.sums.sum);
}

fn add_export(out: &mut Exposition, component: &'static str, target: &str, nid: &str, stats: &Stats) {
    for row in stats.rows.iter().filter(|row| row.sums.count > 0) {
        let labels = [
            ("component", component),
            ("name", row.name),
            ("nid", nid),
            ("target", target),
            ("units", row.unit),
        ];
        out.add(&f::EXPORT_STATS, &labels, row.sums.count);
        let sums = if row.unit == "bytes" {
            &f::EXPORT_BYTES
        } else {
            &f::EXPORT_TIME
        };
        out.add(sums, &labels, row.sums.sum);
    }
}

fn add_job(out: &mut Exposition, component: &'static str, target: &str, job: &KeyStats<String>) {
    let labels = [
        ("component", component),
        ("jobid", job.key.as_str()),
        ("target", target),
    ];
    for row in job.rows.iter().filter(|row| row.sums.count > 0) {
        match row.name {
            "read_bytes" => add_bytes(
                out,
                [
                    &f::JOB_READ_SAMPLES,
                    &f::JOB_READ_MIN,
                    &f::JOB_READ_MAX,
                    &f::JOB_READ_BYTES,
                ],
                &labels,
                row,
            ),
            "write_bytes" => add_bytes(
                out,
                [
                    &f::JOB_WRITE_SAMPLES,
                    &f::JOB_WRITE_MIN,
                    &f::JOB_WRITE_MAX,
                    &f::JOB_WRITE_BYTES,
                ],
                &labels,
                row,
            ),
            operation => {
                let [component, jobid, target] = labels;
                out.add(
                    &f::JOB_STATS,
                    &[component, jobid, ("operation", operation), target],
                    row.sums.count,
                );
            }
        }
    }
}

/// Adds the locks of a namespace. The exporter for Lustre has metrics for server namespaces only.
fn add_namespace(out: &mut Exposition, leaf: &str, value: &Value) {
    let Some((namespace, leaf)) = leaf.split_once('.') else {
        return;
    };
    let target = namespace
        .strip_prefix("filter-")
        .map(|t| ("ost", t))
        .or_else(|| Some(("mdt", namespace.strip_prefix("mdt-")?)))
        .map(|(component, target)| {
            [
                ("component", component),
                ("target", target.trim_end_matches("_UUID")),
            ]
        });
    match leaf {
        "lock_count" => {
            add_number(out, &f::LOCKS, &[("namespace", namespace)], value);
            if let Some(labels) = target {
                add_number(out, &f::LOCK_COUNT, &labels, value);
            }
        }
        "lock_timeouts" => {
            if let Some(labels) = target {
                add_number(out, &f::LOCK_TIMEOUTS, &labels, value);
            }
        }
        _ => {}
    }
}

/// Adds the space of a target, from its store.
fn add_space(out: &mut Exposition, target: &str, leaf: &str, value: &Value) {
    let component = if target.contains("-OST") { "ost" } else { "mdt" };
    let labels = [("component", component), ("target", target)];
    let (kib, bytes) = match leaf {
        "kbytestotal" => (&f::CAPACITY, Some(&f::SPACE)),
        "kbytesfree" => (&f::FREE, Some(&f::SPACE_FREE)),
        "kbytesavail" => (&f::AVAILABLE, Some(&f::SPACE_AVAILABLE)),
        "filestotal" => (&f::INODES_MAX, None),
        "filesfree" => (&f::INODES_FREE, None),
        _ => return,
    };
    add_number(out, kib, &labels, value);
    if let (Some(family), Some(kib)) = (bytes, number(value)) {
        out.add(family, &labels, kib << 10);
    }
}

fn add_service(out: &mut Exposition, service: &str, stats: &Stats) {
    let labels = [("service", service)];
    let row = |name| stats.rows.iter().find(|row| row.name == name);
    if let Some(row) = row("req_waittime") {
        out.add(&f::REQUESTS, &labels, row.sums.count);
        if let Some(buckets) = &row.buckets {
            out.add_histogram(&f::QUEUE_TIME, &labels, row.sums, buckets);
        }
    }
}

fn add_number(out: &mut Exposition, family: &families::Family, labels: &[Label<'_>], value: &Value) {
    if let Some(number) = number(value) {
        out.add(family, labels, number);
    }
}

/// The number that a parameter shows.
fn number(value: &Value) -> Option<u64> {
    match value {
        Value::Counter(n) | Value::Gauge(n) => Some(*n),
        Value::Text(text) => text.trim().parse().ok(),
        Value::Stats(_) | Value::Jobs(_) | Value::Directories(_) => None,
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::{families, render};
    use crate::test_params::register_ost_stats;
    use params::{KeyedStats, Operations, Param, Registry, StatsTable};
    use std::collections::HashSet;
    use std::sync::Arc;
    use std::time::SystemTime;

    const OPERATIONS: Operations = &[("read_bytes", "bytes"), ("read", "usecs"), ("write", "usecs")];

    fn table() -> Arc<StatsTable> {
        let table = StatsTable::with_histograms(OPERATIONS);
        table.add(&[(0, 4096), (1, 7)]);
        Arc::new(table)
    }

    #[test]
    fn parameters_become_metrics_with_the_exporters_labels() {
        let registry = Registry::default();
        let stats = table();
        let jobs = KeyedStats::new(OPERATIONS, 1, String::new(), Arc::default());
        jobs.add(0, "dd.0", &[(0, 4096), (1, 7)], SystemTime::now());
        let _ost_stats = register_ost_stats(&registry, &stats, jobs, SystemTime::now());
        let text = |text: &'static str| Param::read_only(move || text.to_owned());
        let _params = [
            registry.register("obdfilter.fs-OST0000.eviction_count", Param::counter(|| 2)),
            registry.register("mdt.fs-MDT0000.uuid", text("fs-MDT0000_UUID")),
            registry.register(
                "mdt.fs-MDT0000.exports.0@lo.uuid",
                text("a-b\nfs-MDT0000-lwp-OST0000_UUID\n"),
            ),
            registry.register("osd-local.fs-OST0000.kbytestotal", text("2048")),
            registry.register("ldlm.namespaces.filter-fs-OST0000_UUID.lock_count", text("5")),
            registry.register("health_check", text("healthy")),
            registry.register("osp.fs-OST0000-osc-MDT0000.active", text("0")),
            registry.register("osp.fs-OST0001-osc-MDT0000.excluded", text("max_create_count=0")),
            registry.register(
                "osc.fs-OST0000-osc-1.state",
                text("current_state: DISCONN\nstate_history:\n - [ 1, FULL ]\n"),
            ),
            registry.register(
                "mdc.fs-MDT0000-mdc-1.state",
                text("current_state: FULL\nstate_history:\n"),
            ),
        ];
        let text = render(&registry);
        let ost = r#"component="ost""#;
        let target = r#"target="fs-OST0000""#;
        for line in [
            format!(r#"lustre_read_bytes_total{{{ost},operation="read",{target}}} 4096"#),
            format!(
                r#"lustre_client_export_stats_total{{{ost},name="read",nid="10.0.0.7@tcp",{target},units="usecs"}} 1"#
            ),
            format!(r#"lustre_job_read_bytes_total{{{ost},jobid="dd.0",{target}}} 4096"#),
            format!(r#"lustre_job_stats_total{{{ost},jobid="dd.0",operation="read",{target}}} 1"#),
            format!(r#"lustre_capacity_kilobytes{{{ost},{target}}} 2048"#),
            format!(r#"lustre_lock_count_total{{{ost},{target}}} 5"#),
            r#"lustre_connected_clients{component="mdt",target="fs-MDT0000"} 1"#.to_owned(),
            "lustre_health_healthy 1".to_owned(),
            r#"nacre_connected{device="fs-OST0000-osc-MDT0000"} 0"#.to_owned(),
            r#"nacre_connected{device="fs-OST0000-osc-1"} 0"#.to_owned(),
            r#"nacre_connected{device="fs-MDT0000-mdc-1"} 1"#.to_owned(),
            r#"nacre_ost_excluded{device="fs-OST0001-osc-MDT0000"} 1"#.to_owned(),
            format!(r#"nacre_evictions_total{{{ost},{target}}} 2"#),
            format!(r#"nacre_space_bytes{{{ost},{target}}} 2097152"#),
            format!(
                r#"nacre_operation_duration_seconds_bucket{{{ost},operation="read",{target},le="0.000016"}} 1"#
            ),
        ] {
            assert!(text.lines().any(|l| l == line), "{line}\n{text}");
        }
        assert!(!text.contains(r#"operation="write""#), "no samples: {text}");
    }

    #[test]
    fn metrics_do_not_start_the_recording_by_directory() {
        let registry = Registry::default();
        let read = Param::read_only(|| -> String { panic!("the parameter is read") });
        let _param = registry.register("mdt.fs-MDT0000.dir_stats", read);
        assert!(render(&registry).contains("nacre_build_info"));
    }

    #[test]
    fn metrics_have_unique_names_of_their_kind() {
        let mut names = HashSet::new();
        for family in families::ALL {
            assert!(names.insert(family.name), "{} twice", family.name);
            let prefix = ["lustre_", "nacre_"].iter().any(|p| family.name.starts_with(p));
            assert!(
                prefix && !family.help.is_empty() && !family.help.contains('\n'),
                "{}",
                family.name
            );
        }
    }

    /// The names of metrics in a text: words with a metric's prefix.
    fn metric_names(text: &str) -> Vec<&str> {
        let is_name = |c: char| c.is_ascii_alphanumeric() || c == '_';
        text.split(|c| !is_name(c))
            .filter(|word| word.starts_with("lustre_") || word.starts_with("nacre_"))
            .collect()
    }

    #[test]
    fn dashboard_and_alerts_use_only_metrics_that_exist() {
        for text in [
            include_str!("../../../../docs/monitoring/grafana.json"),
            include_str!("../../../../docs/monitoring/alerts.yml"),
        ] {
            let names = metric_names(text);
            assert!(names.len() > 5, "{names:?}");
            for name in names {
                let base = ["_bucket", "_sum", "_count"]
                    .iter()
                    .find_map(|s| name.strip_suffix(s));
                let exists = families::ALL
                    .iter()
                    .any(|f| f.name == name || f.kind == families::Kind::Histogram && Some(f.name) == base);
                assert!(exists, "no metric {name}");
            }
        }
    }
}
