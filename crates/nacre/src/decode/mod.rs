//! `nacre decode FILE.pcap`: prints a packet capture of Lustre traffic in readable form.
//!
//! Each message has one line: time, sender, receiver, portal, xid, opcode, target and facts; a
//! reply also has its status and latency. The `wire` crate decodes the protocol; this module
//! formats the lines.

mod buffers;
mod interpret;
mod line;
mod names;
mod summary;

use anyhow::{Context, Result, bail};
use bytes::Bytes;
use clap::Args as ClapArgs;
use interpret::Interpreter;
use line::Line;
use std::collections::HashSet;
use std::io::{self, BufWriter, Read, Write};
use std::path::PathBuf;
use summary::Summary;
use wire::flow::Flows;
use wire::pcap::Capture;
use wire::{Nid, format};

pub(crate) use names::file_mode;

/// The command line of `nacre decode`.
#[derive(Debug, ClapArgs)]
pub(crate) struct Args {
    /// The capture: pcap (tcpdump -w), perhaps gzipped; `-` reads standard input
    pub(crate) file: PathBuf,
    /// Show every field of every message, including acknowledgements and keepalives
    #[arg(short, long)]
    pub(crate) verbose: bool,
    /// Print one JSON object on each line
    #[arg(long)]
    pub(crate) json: bool,
    /// Only messages from or to this NID (may be repeated)
    #[arg(long, value_name = "NID")]
    pub(crate) nid: Vec<Nid>,
    /// Only messages of this opcode, by name or number (may be repeated)
    #[arg(long, value_name = "OPCODE", value_parser = parse_opcode)]
    pub(crate) opcode: Vec<u32>,
    /// Only the message with this xid, its reply and its bulk (may be repeated)
    #[arg(long, value_name = "XID", value_parser = parse_number)]
    pub(crate) xid: Vec<u64>,
    /// At the end, print the number of messages, failures and latencies for each opcode
    #[arg(long)]
    pub(crate) summary: bool,
}

/// Prints a capture to standard output.
pub(crate) fn run(args: &Args) -> Result<()> {
    let capture = Capture::open(read_capture(args)?)
        .with_context(|| format!("{} is not a readable capture", args.file.display()))
        .context("expected a classic pcap file, as written by `tcpdump -w FILE tcp port 988` (editcap -F pcap converts pcapng)")?;
    let mut out = BufWriter::new(io::stdout().lock());
    match print_capture(args, capture, &mut out).and_then(|()| out.flush()) {
        // A reader may close the pipe early (`| head`).
        Err(e) if e.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        other => other.context("cannot write to standard output"),
    }
}

fn print_capture(args: &Args, capture: Capture, out: &mut impl Write) -> io::Result<()> {
    let (mut flows, mut interpreter, mut summary) =
        (Flows::new(), Interpreter::new(args.verbose), Summary::default());
    let filter = Filter::new(args);
    let mut begin_us = None;
    for segment in capture {
        let begin_us = *begin_us.get_or_insert(segment.time_us);
        for event in flows.feed(segment) {
            let Some(line) = interpreter.line(&event).filter(|l| filter.selects(l)) else {
                continue;
            };
            summary.add(&line);
            if args.json {
                writeln!(out, "{}", line.json())?;
            } else {
                writeln!(out, "{}", line.text(begin_us))?;
            }
        }
    }
    if args.summary {
        summary.print(out, args.json)?;
    }
    Ok(())
}

/// Reads the capture, and unpacks it if it is gzipped.
fn read_capture(args: &Args) -> Result<Bytes> {
    let mut raw = Vec::new();
    if args.file.as_os_str() == "-" {
        io::stdin()
            .lock()
            .read_to_end(&mut raw)
            .context("cannot read standard input")?;
    } else {
        raw = std::fs::read(&args.file).with_context(|| format!("cannot read {}", args.file.display()))?;
    }
    if raw.starts_with(&[0x1f, 0x8b]) {
        let mut file = Vec::new();
        let gzip = flate2::read::MultiGzDecoder::new(&raw[..]).read_to_end(&mut file);
        gzip.with_context(|| format!("cannot unpack {}", args.file.display()))?;
        return Ok(file.into());
    }
    Ok(raw.into())
}

/// Parses a decimal number, or a hexadecimal one with 0x.
fn parse_number(text: &str) -> Result<u64> {
    let parsed = match text.strip_prefix("0x") {
        Some(hex) => u64::from_str_radix(hex, 16),
        None => text.parse(),
    };
    parsed.with_context(|| format!("{text} is not a number"))
}

/// Parses the name of an opcode in upper or lower case, or its number.
fn parse_opcode(text: &str) -> Result<u32> {
    if let Some(format) = format::FORMATS
        .iter()
        .find(|f| f.opcode_name.eq_ignore_ascii_case(text))
    {
        return Ok(format.opcode);
    }
    match parse_number(text) {
        Ok(n) => Ok(u32::try_from(n)?),
        Err(_) => bail!(
            "{text} is not an opcode: give a name such as MDS_REINT, LDLM_ENQUEUE, OST_WRITE, or a number"
        ),
    }
}

/// Selects the lines to print; an empty set selects every line.
struct Filter {
    nids: HashSet<Nid>,
    opcodes: HashSet<u32>,
    xids: HashSet<u64>,
}

impl Filter {
    fn new(args: &Args) -> Filter {
        Filter {
            nids: args.nid.iter().copied().collect(),
            opcodes: args.opcode.iter().copied().collect(),
            xids: args.xid.iter().copied().collect(),
        }
    }

    fn selects(&self, line: &Line) -> bool {
        let nid = self.nids.is_empty() || self.nids.contains(&line.from) || self.nids.contains(&line.to);
        let opcode = self.opcodes.is_empty() || line.opcode.is_some_and(|o| self.opcodes.contains(&o));
        let xid = self.xids.is_empty() || line.xid.is_some_and(|x| self.xids.contains(&x));
        nid && opcode && xid
    }
}

#[cfg(test)]
mod tests;
