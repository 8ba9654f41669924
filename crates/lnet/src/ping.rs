//! Pings: queries for the NIDs of a node (docs/protocol.md, "LNet").
//!
//! This node does not set the discovery feature, like a Lustre node with discovery switched off.
//! Peers then treat it as a node without multi-rail, although its replies have that feature
//! ([`PingReply::up`]), and do not push their own NIDs to it. This node acknowledges and ignores a
//! push (a PUT to the portal and match bits of pings).

use crate::LnetError;
use wire::frame::PingReply;
use wire::{LNET_PING_FEAT_NI_STATUS, Nid};

/// Maximum length in bytes of the reply to this node's pings: a head and 256 interfaces.
pub(crate) const PING_REPLY_MAX: u32 = 16 + 16 * 256;

/// Parses a ping reply of `peer`. Like Lustre's LNet, refuses replies without interface status and
/// replies that do not list `0@lo` first.
pub(crate) fn parse(peer: Nid, bytes: &[u8]) -> Result<PingReply, LnetError> {
    let protocol_error = |why: String| LnetError::Protocol { peer, why };
    let reply = PingReply::parse(bytes).map_err(|e| protocol_error(e.to_string()))?;
    if reply.features & LNET_PING_FEAT_NI_STATUS == 0 {
        return Err(protocol_error(format!(
            "its ping reply has features {:#x}, without interface status",
            reply.features
        )));
    }
    match reply.nis.first() {
        Some(first) if first.ns_nid == Nid::LO => Ok(reply),
        first => Err(protocol_error(format!(
            "its ping reply starts with {:?} instead of 0@lo",
            first.map(|ni| ni.ns_nid)
        ))),
    }
}

#[cfg(test)]
mod tests {
    use super::parse;
    use wire::Nid;
    use wire::frame::PingReply;

    #[test]
    fn replies_without_lo_or_interface_status_are_refused() {
        let good = PingReply::up(12345, 7, &["10.0.0.1@tcp".parse().expect("a NID")], false);
        assert!(parse(Nid::ANY, &good.build()).is_ok());
        assert!(
            parse(
                Nid::ANY,
                &PingReply {
                    features: 1,
                    ..good.clone()
                }
                .build()
            )
            .is_err()
        );
        assert!(
            parse(
                Nid::ANY,
                &PingReply {
                    nis: good.nis[1..].to_vec(),
                    ..good
                }
                .build()
            )
            .is_err()
        );
        assert!(parse(Nid::ANY, b"garbage").is_err());
    }
}
