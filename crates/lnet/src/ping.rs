//! The ping target's answer (guide 2.4): which NIDs a node has. Pure.
//!
//! This node says that it knows interface status, and neither multi-rail nor discovery: peers then treat it as a simple
//! peer and push nothing to it. A push that comes all the same is acknowledged and not used.

use bytes::Bytes;
use wire::{
    LNET_INTERFACES_MAX_DEFAULT, LNET_NI_STATUS_UP, LNET_PID_LUSTRE, LNET_PING_FEAT_BASE,
    LNET_PING_FEAT_NI_STATUS, LNET_PROTO_PING_MAGIC, LnetNiStatus, LnetPingInfo, Nid, Reader, WireError,
    WireStruct, Writer,
};

/// How long an answer to our own pings may be.
pub(crate) const PING_REPLY_MAX: u32 = 16 + 16 * 256;

/// What a node answered to a ping.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PingInfo {
    /// What it can do: `LNET_PING_FEAT_*`.
    pub pi_features: u32,
    /// Its process id, 12345 for Lustre.
    pub pi_pid: u32,
    /// Changes whenever the list changes.
    pub sequence: u32,
    /// Its NIDs, `0@lo` first, then the primary one; with their `LNET_NI_STATUS_*`.
    pub nids: Vec<(Nid, u32)>,
}

impl PingInfo {
    /// What a node with these NIDs (without `0@lo`) answers.
    pub(crate) fn of(nids: &[Nid], sequence: u32) -> PingInfo {
        let up = nids.iter().map(|&nid| (nid, LNET_NI_STATUS_UP));
        PingInfo {
            pi_features: LNET_PING_FEAT_BASE | LNET_PING_FEAT_NI_STATUS,
            pi_pid: LNET_PID_LUSTRE,
            sequence,
            nids: std::iter::once((Nid::LO, LNET_NI_STATUS_UP)).chain(up).collect(),
        }
    }

    /// As it goes over the wire. The status of `0@lo` is the sequence number.
    pub(crate) fn build(&self) -> Bytes {
        let mut w = Writer::with_capacity(16 + 16 * self.nids.len());
        let (pi_magic, pi_nnis) = (LNET_PROTO_PING_MAGIC, self.nids.len() as u32);
        LnetPingInfo {
            pi_magic,
            pi_features: self.pi_features,
            pi_pid: self.pi_pid,
            pi_nnis,
        }
        .write(&mut w);
        for (i, &(ns_nid, status)) in self.nids.iter().enumerate() {
            let ns_status = if i == 0 { self.sequence } else { status };
            LnetNiStatus {
                ns_nid,
                ns_status,
                ns_msg_size: 0,
            }
            .write(&mut w);
        }
        w.finish()
    }

    /// Reads an answer. It may be cut off after any entry, when the peer has more NIDs than we asked for.
    pub(crate) fn parse(bytes: &[u8]) -> Result<PingInfo, WireError> {
        let mut r = Reader::new("lnet_ping_info", bytes);
        let info = LnetPingInfo::read(&mut r)?;
        let (expected, found) = (u64::from(LNET_PROTO_PING_MAGIC), u64::from(info.pi_magic));
        if found != expected {
            return Err(WireError::Magic {
                what: "lnet_ping_info",
                expected,
                found,
            });
        }
        if info.pi_features & LNET_PING_FEAT_NI_STATUS == 0 {
            let found = info.pi_features.into();
            return Err(WireError::Value {
                what: "pi_features",
                expected: "LNET_PING_FEAT_NI_STATUS",
                found,
            });
        }
        if !(1..=LNET_INTERFACES_MAX_DEFAULT).contains(&info.pi_nnis) {
            let found = info.pi_nnis.into();
            return Err(WireError::Value {
                what: "pi_nnis",
                expected: "1 to 4096 interfaces",
                found,
            });
        }
        let mut nids = Vec::new();
        let mut sequence = 0;
        while nids.len() < info.pi_nnis as usize && r.rest().len() >= LnetNiStatus::SIZE {
            let ni = LnetNiStatus::read(&mut r)?;
            if nids.is_empty() {
                if ni.ns_nid != Nid::LO {
                    return Err(WireError::Value {
                        what: "first NID",
                        expected: "0@lo",
                        found: ni.ns_nid.0,
                    });
                }
                sequence = ni.ns_status;
                nids.push((Nid::LO, LNET_NI_STATUS_UP));
            } else {
                nids.push((ni.ns_nid, ni.ns_status));
            }
        }
        Ok(PingInfo {
            pi_features: info.pi_features,
            pi_pid: info.pi_pid,
            sequence,
            nids,
        })
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::PingInfo;
    use wire::Nid;

    #[test]
    fn an_answer_names_lo_first_and_survives_the_wire() {
        let info = PingInfo::of(&["10.0.0.1@tcp".parse().unwrap()], 7);
        let bytes = info.build();
        assert_eq!(bytes.len(), 48);
        assert_eq!(PingInfo::parse(&bytes).unwrap(), info);
        assert_eq!(info.nids[0].0, Nid::LO);
    }

    #[test]
    fn garbage_and_answers_without_lo_are_refused() {
        assert!(PingInfo::parse(&[0; 64]).is_err());
        let mut bytes = PingInfo::of(&[], 7).build().to_vec();
        bytes[22] = 2;
        assert!(PingInfo::parse(&bytes).is_err());
        assert!(PingInfo::parse(&bytes[..10]).is_err());
    }
}
