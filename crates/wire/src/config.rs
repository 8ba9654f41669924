//! Configuration records (`lustre_cfg`): a command, numbers, and up to eight buffers, most of them
//! text.

use crate::codec::{Reader, Result, WireError, Writer, round_up8};
use crate::consts::lcfg::LCFG_MARKER;
use crate::consts::llog::{LUSTRE_CFG_MAX_BUFCOUNT, LUSTRE_CFG_VERSION};
use crate::ids::{before_nul, nul_terminated};
use crate::layout::WireStruct;
use crate::mgs::{CfgMarker, LustreCfg};
use crate::nid::Nid;
use bytes::Bytes;

/// One configuration record.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Config {
    /// The command, one of `LCFG_*`.
    pub command: u32,
    /// `lcfg_num`; 0 in Nacre's records.
    pub num: u32,
    /// `lcfg_flags`; 0 in Nacre's records.
    pub flags: u32,
    /// `lcfg_nid`: the argument of commands such as `LCFG_ADD_UUID`.
    pub nid: Nid,
    /// The buffers; the first is the device's name or empty.
    pub bufs: Vec<Bytes>,
}

impl Config {
    /// A record with a buffer for each text: the text and a NUL, or no bytes for an empty text.
    pub fn new(command: u32, texts: &[&str]) -> Config {
        let bufs = texts.iter().map(|t| {
            if t.is_empty() {
                Bytes::new()
            } else {
                nul_terminated(t.as_bytes())
            }
        });
        Config {
            command,
            bufs: bufs.collect(),
            ..Config::default()
        }
    }

    /// The same record with a NID.
    pub fn with_nid(self, nid: Nid) -> Config {
        Config { nid, ..self }
    }

    /// A record for `device` with one structure as its argument.
    pub fn with_struct(command: u32, device: &str, argument: &impl WireStruct) -> Config {
        let mut config = Config::new(command, &[device]);
        config.bufs.push(argument.to_bytes());
        config
    }

    /// A marker record: start or end of a section.
    pub fn marker(marker: &CfgMarker) -> Config {
        Config::with_struct(LCFG_MARKER, "", marker)
    }

    /// Parses a record.
    ///
    /// # Errors
    ///
    /// A wrong version, too many buffers, or a header or buffers beyond the end.
    pub fn parse(bytes: &[u8]) -> Result<Config> {
        let mut r = Reader::new("lustre_cfg", bytes);
        let head = LustreCfg::read(&mut r)?;
        if head.lcfg_version != LUSTRE_CFG_VERSION {
            let (expected, found) = (LUSTRE_CFG_VERSION.into(), head.lcfg_version.into());
            return Err(WireError::Magic {
                what: "lustre_cfg",
                expected,
                found,
            });
        }
        if head.lcfg_bufcount > LUSTRE_CFG_MAX_BUFCOUNT {
            let (limit, found) = (LUSTRE_CFG_MAX_BUFCOUNT as usize, head.lcfg_bufcount as usize);
            return Err(WireError::TooLong {
                what: "lcfg_bufcount",
                limit,
                found,
            });
        }
        let count = head.lcfg_bufcount as usize;
        let lens = (0..count).map(|_| r.u32()).collect::<Result<Vec<_>>>()?;
        r.take(round_up8(4 * count) - 4 * count)?;
        let mut bufs = Vec::with_capacity(count);
        for len in lens {
            let len = len as usize;
            bufs.push(Bytes::copy_from_slice(r.take(len)?));
            // The last buffer may lack its padding if the record ends with it.
            r.take((round_up8(len) - len).min(r.rest().len()))?;
        }
        Ok(Config {
            command: head.lcfg_command,
            num: head.lcfg_num,
            flags: head.lcfg_flags,
            nid: head.lcfg_nid,
            bufs,
        })
    }

    /// The record in wire format.
    pub fn build(&self) -> Bytes {
        let mut w = Writer::new();
        LustreCfg {
            lcfg_version: LUSTRE_CFG_VERSION,
            lcfg_command: self.command,
            lcfg_num: self.num,
            lcfg_flags: self.flags,
            lcfg_nid: self.nid,
            lcfg_nal: 0,
            lcfg_bufcount: self.bufs.len() as u32,
        }
        .write(&mut w);
        for buf in &self.bufs {
            w.u32(buf.len() as u32);
        }
        w.align8();
        for buf in &self.bufs {
            w.put(buf);
            w.align8();
        }
        w.finish()
    }

    /// The text of buffer `i` up to a NUL; empty if the buffer is missing or not UTF-8.
    pub fn text(&self, i: usize) -> &str {
        let buf = self.bufs.get(i).map_or(&[][..], |b| before_nul(b));
        std::str::from_utf8(buf).unwrap_or("")
    }

    /// The marker; `None` if the record is no marker, or a malformed one.
    pub fn as_marker(&self) -> Option<CfgMarker> {
        let buf = self.bufs.get(1).filter(|_| self.command == LCFG_MARKER)?;
        CfgMarker::from_bytes(buf).ok()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::Config;
    use crate::{CM_START, CfgMarker, LCFG_ATTACH, Text};
    use bytes::Bytes;
    use proptest::prelude::{any, prop, proptest};

    #[test]
    fn a_marker_survives_a_round_trip() {
        let marker = CfgMarker {
            cm_step: 3,
            cm_flags: CM_START,
            cm_tgtname: Text::truncated("lus-OST0000"),
            ..Default::default()
        };
        let built = Config::marker(&marker).build();
        assert_eq!(Config::parse(&built).unwrap().as_marker(), Some(marker));
        assert_eq!(Config::new(LCFG_ATTACH, &["lus-clilov", "lov"]).as_marker(), None);
    }

    proptest! {
        #[test]
        fn a_record_survives_a_round_trip(command: u32, num: u32, bufs in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..40), 0..9)) {
            let config = Config { command, num, bufs: bufs.into_iter().map(Bytes::from).collect(), ..Config::default() };
            assert_eq!(Config::parse(&config.build()), Ok(config));
        }

        #[test]
        fn arbitrary_bytes_never_panic(mut bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let _ = Config::parse(&bytes);
            if bytes.len() > 32 {
                bytes[..4].copy_from_slice(&0x1cf6_0001u32.to_le_bytes());
                bytes[28..32].copy_from_slice(&[3, 0, 0, 0]);
            }
            let _ = Config::parse(&bytes);
        }
    }
}
