//! `nacre decode FILE.pcap`: prints a packet capture of Lustre traffic in readable form.

use std::io::{self, BufWriter, Read, Write};
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, Result, bail};
use bytes::Bytes;
use capture::decode::{Options, print};
use capture::pcap::{Capture, unpack};
use clap::Args as ClapArgs;
use wire::{Nid, format};

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
pub(super) fn run(args: Args) -> Result<ExitCode> {
    let capture = Capture::open(read_capture(&args)?)
        .with_context(|| format!("{} is not a readable capture", args.file.display()))
        .context("expected a classic pcap file, as written by `tcpdump -w FILE tcp port 988` (editcap -F pcap converts pcapng)")?;
    let options = Options {
        verbose: args.verbose,
        json: args.json,
        summary: args.summary,
        nids: args.nid.into_iter().collect(),
        opcodes: args.opcode.into_iter().collect(),
        xids: args.xid.into_iter().collect(),
    };
    let mut out = BufWriter::new(io::stdout().lock());
    match print(capture, &options, &mut out).and_then(|()| out.flush()) {
        // A reader may close the pipe early (`| head`).
        Err(e) if e.kind() == io::ErrorKind::BrokenPipe => {}
        other => other.context("cannot write to standard output")?,
    }
    Ok(ExitCode::SUCCESS)
}

/// Reads the capture, and unpacks it if it is gzipped.
fn read_capture(args: &Args) -> Result<Bytes> {
    let mut file = Vec::new();
    if args.file.as_os_str() == "-" {
        io::stdin()
            .lock()
            .read_to_end(&mut file)
            .context("cannot read standard input")?;
    } else {
        file = std::fs::read(&args.file).with_context(|| format!("cannot read {}", args.file.display()))?;
    }
    unpack(file).with_context(|| format!("cannot unpack {}", args.file.display()))
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

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::parse_opcode;

    #[test]
    fn opcode_filter_accepts_name_or_number() {
        assert_eq!(parse_opcode("mds_reint").unwrap(), wire::MDS_REINT);
        assert_eq!(parse_opcode("0x24").unwrap(), wire::MDS_REINT);
        let error = parse_opcode("MDS_NONSENSE").unwrap_err().to_string();
        assert!(error.contains("is not an opcode"), "{error}");
    }
}
