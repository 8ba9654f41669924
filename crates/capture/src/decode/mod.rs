//! The readable form of a capture, as `nacre decode` prints it.
//!
//! Each message has one line: time, sender, receiver, portal, xid, opcode, target and facts; a
//! reply also has its status and latency. The `wire` crate decodes the protocol; this module
//! formats the lines.

mod buffers;
mod interpret;
mod line;
mod names;
mod summary;

use crate::flow::Flows;
use crate::pcap::Capture;
use interpret::Interpreter;
use line::Line;
use std::collections::HashSet;
use std::io::{self, Write};
use summary::Summary;
use wire::Nid;

/// The messages and details to print. An empty set selects every message.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// Show every field of every message, including acknowledgements and keepalives.
    pub verbose: bool,
    /// Print one JSON object on each line.
    pub json: bool,
    /// At the end, print the number of messages, failures and latencies for each opcode.
    pub summary: bool,
    /// Only messages from or to these NIDs.
    pub nids: HashSet<Nid>,
    /// Only messages of these opcodes.
    pub opcodes: HashSet<u32>,
    /// Only requests with these xids, their replies and their bulk data.
    pub xids: HashSet<u64>,
}

/// Prints a capture.
///
/// # Errors
///
/// The error of `out`.
pub fn print(capture: Capture, options: &Options, out: &mut impl Write) -> io::Result<()> {
    let (mut flows, mut interpreter, mut summary) = (
        Flows::new(),
        Interpreter::new(options.verbose),
        Summary::default(),
    );
    let mut begin_us = None;
    for segment in capture {
        let begin_us = *begin_us.get_or_insert(segment.time_us);
        for event in flows.feed(segment) {
            let Some(line) = interpreter.line(&event).filter(|l| options.selects(l)) else {
                continue;
            };
            summary.add(&line);
            if options.json {
                writeln!(out, "{}", line.json())?;
            } else {
                writeln!(out, "{}", line.text(begin_us))?;
            }
        }
    }
    if options.summary {
        summary.print(out, options.json)?;
    }
    Ok(())
}

impl Options {
    fn selects(&self, line: &Line) -> bool {
        let nid = self.nids.is_empty() || self.nids.contains(&line.from) || self.nids.contains(&line.to);
        let opcode = self.opcodes.is_empty() || line.opcode.is_some_and(|o| self.opcodes.contains(&o));
        let xid = self.xids.is_empty() || line.xid.is_some_and(|x| self.xids.contains(&x));
        nid && opcode && xid
    }
}

#[cfg(test)]
mod tests;
