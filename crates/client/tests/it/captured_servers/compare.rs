//! Compares two requests for the same operation, field by field.

use std::collections::{BTreeMap, BTreeSet};
use testbase::captured::differences::Table;
use wire::Message;
use wire::format::{Rqf, leaves};

/// A field in which our client differs from the captured one.
#[derive(Clone, Debug)]
pub struct Difference {
    /// The capture that was played.
    pub scenario: String,
    /// The name of the request's format.
    pub message: &'static str,
    /// The field's path.
    pub field: String,
    /// Our client's value.
    pub ours: String,
    /// The captured value.
    pub theirs: String,
}

/// The results of a run.
#[derive(Debug, Default)]
pub struct Counts {
    /// Number of requests and replies compared with captured ones.
    pub messages: usize,
    /// Number of fields in them.
    pub fields: usize,
    pub differences: Vec<Difference>,
}

impl Counts {
    pub fn add(&mut self, other: Counts) {
        self.messages += other.messages;
        self.fields += other.fields;
        self.differences.extend(other.differences);
    }

    /// Compares a request or reply with the captured one.
    pub fn compare(
        &mut self,
        scenario: &str,
        format: &'static Rqf,
        is_reply: bool,
        ours: &Message,
        theirs: &Message,
    ) {
        let fields = |msg: &Message| fields(format, is_reply, msg);
        let (ours, theirs) = (fields(ours), fields(theirs));
        self.messages += 1;
        let names: BTreeSet<_> = ours.keys().chain(theirs.keys()).collect();
        for field in names {
            self.fields += 1;
            let absent = "absent".to_owned();
            let (our_value, their_value) = (
                ours.get(field).unwrap_or(&absent),
                theirs.get(field).unwrap_or(&absent),
            );
            if our_value != their_value {
                self.record_difference(scenario, format, field, our_value, their_value);
            }
        }
    }

    /// Records a difference.
    pub fn record_difference(
        &mut self,
        scenario: &str,
        format: &'static Rqf,
        field: &str,
        ours: &str,
        theirs: &str,
    ) {
        self.differences.push(Difference {
            scenario: scenario.to_owned(),
            message: format.name.trim_start_matches("RQF_"),
            field: field.to_owned(),
            ours: ours.to_owned(),
            theirs: theirs.to_owned(),
        });
    }

    /// The differences that the table does not explain, each with the scenarios in which it
    /// occurred.
    pub fn unexplained(&self, table: &Table) -> BTreeMap<String, BTreeSet<&str>> {
        let mut out: BTreeMap<String, BTreeSet<&str>> = BTreeMap::new();
        for d in &self.differences {
            if !table.explains(&d.scenario, d.message, &d.field) {
                let line = format!("{} {}: {} for {}", d.message, d.field, d.ours, d.theirs);
                out.entry(line).or_default().insert(&d.scenario);
            }
        }
        out
    }
}

/// The fields of a message by path. The caller has put the portal into the unused `lm_opc`.
fn fields(format: &Rqf, is_reply: bool, msg: &Message) -> BTreeMap<String, String> {
    let bufs = if is_reply { format.reply } else { format.request };
    let mut out = BTreeMap::from([
        ("lm_secflvr".to_owned(), format!("{:#x}", msg.secflvr)),
        ("lm_flags".to_owned(), format!("{:#x}", msg.flags)),
        ("portal".to_owned(), msg.opc.to_string()),
        ("lm_bufcount".to_owned(), msg.bufs.len().to_string()),
    ]);
    for (i, rmf) in bufs.iter().enumerate() {
        match leaves(*rmf, format.opcode, msg.buf(i)) {
            Ok(leaves) => out.extend(leaves.into_iter().map(|l| (l.path, format!("{:?}", l.value)))),
            Err(e) => drop(out.insert(rmf.name().to_owned(), e.to_string())),
        }
    }
    out
}
