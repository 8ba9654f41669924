//! The properties of a request by which the table of numbers selects it. This module is pure.

use wire::format::bufs;
use wire::{
    IT_OPEN, LDLM_ENQUEUE, LDLM_EXTENT, LDLM_FL_HAS_INTENT, LdlmRequest, MDS_REINT, MSG_LOCK_REPLAY_DONE,
    MSG_REPLAY, MSG_REQ_REPLAY_DONE, Message, OBD_FL_DELORPHAN, OBD_MD_FLFLAGS, OBD_PING, OST_CREATE,
    OstBody, PtlrpcBody, REINT_OPEN,
};

/// The kind of server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Server {
    Mgs,
    Mdt,
    Ost,
}

impl Server {
    /// The kind of the target with this UUID.
    pub(crate) fn of_target(uuid: &str) -> Server {
        match uuid.rsplit_once('-') {
            Some((_, index)) if index.starts_with("MDT") => Server::Mdt,
            Some((_, index)) if index.starts_with("OST") => Server::Ost,
            _ => Server::Mgs,
        }
    }
}

/// A request, as the table of numbers sees it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Facts {
    /// The server that handles the request; `None` at stages that no rule for a kind of server
    /// concerns.
    pub(super) server: Option<Server>,
    /// The opcode.
    pub(super) opc: u32,
    /// `pb_flags`.
    flags: u32,
    /// The operation of an `MDS_REINT`; 0: another request.
    pub(super) reint: u32,
    /// Whether an enqueue has an intent.
    pub(super) has_intent: bool,
    /// Whether the request opens a file.
    pub(super) opens: bool,
    /// Whether an enqueue asks for an extent lock.
    pub(super) locks_extent: bool,
    /// Whether the MDT asks the OST to destroy objects without a file.
    pub(super) cleans_orphans: bool,
}

impl Facts {
    /// The facts about a message. A malformed message has fewer.
    pub(crate) fn of(server: impl Into<Option<Server>>, body: &PtlrpcBody, msg: &Message) -> Facts {
        let opc = body.pb_opc;
        let first_word = |buf: &[u8]| buf.first_chunk().map_or(0, |b| u32::from_le_bytes(*b));
        let reint = match opc == MDS_REINT {
            true => first_word(msg.buf(bufs::REC_REINT)),
            false => 0,
        };
        let dlm = (opc == LDLM_ENQUEUE)
            .then(|| msg.get::<LdlmRequest>(bufs::DLM_REQ).ok())
            .flatten();
        let has_intent = dlm.is_some_and(|dlm| u64::from(dlm.lock_flags) & LDLM_FL_HAS_INTENT != 0);
        let intent = match has_intent {
            true => u64::from(first_word(msg.buf(bufs::INTENT))),
            false => 0,
        };
        let create = (opc == OST_CREATE)
            .then(|| msg.get::<OstBody>(bufs::OST_BODY).ok())
            .flatten();
        Facts {
            server: server.into(),
            opc,
            flags: body.pb_flags,
            reint,
            has_intent,
            opens: reint == REINT_OPEN || intent & IT_OPEN != 0,
            locks_extent: dlm.is_some_and(|dlm| dlm.lock_desc.l_resource.lr_type == LDLM_EXTENT),
            cleans_orphans: create.is_some_and(|body| {
                body.oa.o_valid & OBD_MD_FLFLAGS != 0 && body.oa.o_flags & OBD_FL_DELORPHAN != 0
            }),
        }
    }

    /// Whether a client replays this request after a restart of the server.
    pub(super) fn is_replay(&self) -> bool {
        self.flags & MSG_REPLAY != 0
    }

    /// Whether a client claims a lock again after a restart of the server.
    pub(super) fn is_lock_replay(&self) -> bool {
        self.opc == LDLM_ENQUEUE && self.flags & MSG_REQ_REPLAY_DONE != 0
    }

    /// Whether this is the ping with which a client ends its recovery.
    pub(super) fn is_final_ping(&self) -> bool {
        self.opc == OBD_PING && self.flags & MSG_LOCK_REPLAY_DONE != 0
    }
}

#[cfg(test)]
mod tests {
    use super::Server;

    #[test]
    fn kind_of_a_server_follows_from_its_uuid() {
        assert_eq!(Server::of_target("test-fs-MDT0000_UUID"), Server::Mdt);
        assert_eq!(Server::of_target("testfs-OST000a_UUID"), Server::Ost);
        assert_eq!(Server::of_target("MGS"), Server::Mgs);
    }
}
