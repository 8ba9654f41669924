//! Compares two messages field by field. Two fields may be equal, be corresponding identifiers,
//! differ with a reason, or differ without a reason.

use crate::captured_clients::ids::{Ids, Kind, kind};
use crate::captured_clients::servers::{captured_nid, local_nid};
use bytes::Bytes;
use std::collections::BTreeMap;
use std::time::{SystemTime, UNIX_EPOCH};
use testbase::captured::differences::Table;
use testbase::captured::fields;
use wire::dirpage::{DirPage, PAGE};
use wire::format::{Leaf, Rmf, Value};

/// The day of the captures, in seconds since 1970. A captured time of this day corresponds to a
/// time of this run.
const CAPTURED_DAY: std::ops::Range<u64> = 1_795_132_800..1_795_219_200;
/// Largest difference in seconds between corresponding times.
const CLOCK_SKEW_MAX_S: u64 = 5;

/// The counts of one capture.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Tally {
    /// Number of compared replies.
    pub(crate) exchanges: usize,
    /// Number of compared callbacks.
    pub(crate) callbacks: usize,
    /// Number of requests that were not played.
    pub(crate) not_played: usize,
    /// Number of compared fields.
    pub(crate) fields: usize,
    /// Number of differences with a reason.
    pub(crate) explained: usize,
}

/// Compares messages and collects the results.
pub(crate) struct Comparer {
    pub(crate) ids: Ids,
    pub(crate) table: Table,
    pub(crate) tallies: BTreeMap<String, Tally>,
    pub(crate) unexplained: Vec<String>,
    /// Start of the run, in seconds since 1970.
    start: u64,
}

/// Identifies a message by its capture and name, with the format of its buffers.
pub(crate) struct MessageId<'a> {
    pub(crate) label: &'a str,
    pub(crate) name: &'a str,
    pub(crate) format: &'a [Rmf],
    pub(crate) opcode: u32,
}

fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs()
}

impl Comparer {
    pub(crate) fn new(table: &str) -> Comparer {
        Comparer {
            ids: Ids::default(),
            table: Table::parse(table),
            tallies: BTreeMap::new(),
            unexplained: Vec::new(),
            start: now(),
        }
    }

    pub(crate) fn tally(&mut self, label: &str) -> &mut Tally {
        self.tallies.entry(label.to_owned()).or_default()
    }

    /// The counts of each capture, one line each. Leaves out the number of differences, because
    /// some differences depend on time.
    pub(crate) fn counts(&self) -> String {
        let line = |(label, t): (&String, &Tally)| {
            let (exchanges, callbacks, not_played) = (t.exchanges, t.callbacks, t.not_played);
            let fields = t.fields;
            format!(
                "{label:24} {exchanges:4} exchanges {callbacks:3} callbacks {fields:6} fields {not_played:3} not played\n"
            )
        };
        let all = self.tallies.values().fold(Tally::default(), |sum, t| Tally {
            exchanges: sum.exchanges + t.exchanges,
            callbacks: sum.callbacks + t.callbacks,
            not_played: sum.not_played + t.not_played,
            fields: sum.fields + t.fields,
            explained: sum.explained + t.explained,
        });
        println!("{} of {} fields differ with a reason", all.explained, all.fields);
        self.tallies
            .iter()
            .chain([(&"all".to_owned(), &all)])
            .map(line)
            .collect()
    }

    /// Counts a difference as explained if the table has a reason; else records it as unexplained.
    pub(crate) fn record_difference(&mut self, label: &str, name: &str, field: &str, how: &str) {
        if self.table.explains(label, name, field) {
            self.tally(label).explained += 1;
        } else {
            self.unexplained.push(format!("{label} {name} {field} {how}"));
        }
    }

    /// Compares the buffers of two messages.
    pub(crate) fn compare(&mut self, id: &MessageId<'_>, captured: &[Bytes], ours: &[Bytes]) {
        let leaves = |bufs| {
            fields(id.format, id.opcode, bufs)
                .into_iter()
                .map(|(_, leaf)| leaf)
        };
        self.compare_leaves(id, leaves(captured).collect(), leaves(ours).collect());
        if captured.len() != ours.len() {
            let how = format!("{} captured, {} here", captured.len(), ours.len());
            self.record_difference(id.label, id.name, "buffers", &how);
        }
    }

    /// Compares bulk data.
    pub(crate) fn compare_bulk(&mut self, id: &MessageId<'_>, captured: &Bytes, ours: &Bytes) {
        if id.opcode == wire::MDS_READPAGE {
            return self.compare_leaves(id, names(captured), names(ours));
        }
        let whole = |data: &Bytes| {
            let len = Value::Number(data.len() as u64);
            vec![
                Leaf {
                    path: "bulk.len".into(),
                    at: 0..0,
                    value: len,
                },
                Leaf {
                    path: "bulk.data".into(),
                    at: 0..0,
                    value: Value::Bytes(data.to_vec()),
                },
            ]
        };
        self.compare_leaves(id, whole(captured), whole(ours));
    }

    /// Compares fields by path.
    fn compare_leaves(&mut self, id: &MessageId<'_>, captured: Vec<Leaf>, ours: Vec<Leaf>) {
        let mut ours_by_path: BTreeMap<String, Leaf> =
            ours.into_iter().map(|l| (l.path.clone(), l)).collect();
        for leaf in captured {
            self.tally(id.label).fields += 1;
            match ours_by_path.remove(&leaf.path) {
                Some(our) if self.corresponds(&leaf, &our) => {}
                Some(our) => {
                    let how = format!("{:?} captured, {:?} here", leaf.value, our.value);
                    self.record_difference(id.label, id.name, &leaf.path, &how);
                }
                None => {
                    let how = format!("{:?} captured, not here", leaf.value);
                    self.record_difference(id.label, id.name, &leaf.path, &how);
                }
            }
        }
        for (path, leaf) in ours_by_path {
            let how = format!("not captured, {:?} here", leaf.value);
            self.record_difference(id.label, id.name, &path, &how);
        }
    }

    /// Whether our value is equal to the captured value, or corresponds to it.
    fn corresponds(&mut self, captured: &Leaf, ours: &Leaf) -> bool {
        let kind = kind(captured);
        match (kind, &captured.value, &ours.value) {
            (Kind::Time, Value::Number(c), Value::Number(o)) => {
                let present = self.start.saturating_sub(CLOCK_SKEW_MAX_S)..now() + CLOCK_SKEW_MAX_S;
                c.abs_diff(*o) <= CLOCK_SKEW_MAX_S || (CAPTURED_DAY.contains(c) && present.contains(o))
            }
            (_, Value::Text(c), Value::Text(o)) => *c == as_captured(o),
            (_, c, o) => self.ids.learn_pair(kind, c, o),
        }
    }
}

/// Text with this run's addresses replaced by the captured ones.
fn as_captured(text: &[u8]) -> Vec<u8> {
    let mut text = String::from_utf8_lossy(text).into_owned();
    for last in [11, 12] {
        let (ours, theirs) = (local_nid(captured_nid(last)), captured_nid(last));
        text = text.replace(&ours.to_string(), &theirs.to_string());
    }
    text.into_bytes()
}

/// The entries of directory pages, by name.
fn names(pages: &Bytes) -> Vec<Leaf> {
    let mut out = Vec::new();
    for page in pages.chunks(PAGE) {
        let page = DirPage::parse(&Bytes::copy_from_slice(page)).unwrap();
        for entry in page.entries {
            let name = String::from_utf8_lossy(&entry.name).into_owned();
            let mut add = |field: &str, value| {
                out.push(Leaf {
                    path: format!("{name}.{field}"),
                    at: 0..0,
                    value,
                });
            };
            add("fid", Value::Fid(entry.fid));
            add("mode", Value::Number(entry.mode.unwrap_or_default().into()));
            add("attrs", Value::Number(entry.attrs.into()));
            add("hash", Value::Number(entry.hash));
        }
    }
    out
}
