//! The client's part in the recovery of a restarted server (docs/protocol.md, "Recovery"): replays
//! requests in the order of their transnos, then locks, and waits for the end of the recovery.

use super::machine::Event;
use super::{Import, UncommittedRequest};
use crate::{Executed, Replay, Request, RpcError};
use std::sync::Arc;
use std::time::Duration;
use tokio::time::sleep;
use wire::{Errno, OBD_PING, Transno};

/// Pause before a replay is repeated because the server could not execute it yet.
const REPLAY_PAUSE: Duration = Duration::from_millis(500);

/// The replays that a recovering server has answered.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct ReplayedTo {
    /// The server's handle of the export. A server that restarts again has a new one.
    handle: u64,
    /// The transno of the last answered replay.
    transno: Transno,
    /// The transno of the last replay that was sent.
    sent: Transno,
}

impl Import {
    /// Recovers at the restarted server. Returns early if the connection is lost or the server
    /// refuses a replay; the machine then gets an event.
    pub(super) async fn recover(self: &Arc<Self>, conn_cnt: u32) {
        tracing::info!(import = self.name(), peer = %self.peer(), "the server has restarted and recovers: replaying requests and locks");
        if let Err(why) = self.replay_all(conn_cnt).await {
            tracing::info!(import = self.name(), error = %why, "replay interrupted");
            self.event(Event::Broken { conn_cnt });
        }
    }

    async fn replay_all(self: &Arc<Self>, conn_cnt: u32) -> Result<(), RpcError> {
        while let Some((transno, entry)) = self.next_to_replay() {
            let refused = self.replay_request(transno, entry).await? == Some(Errno::EOVERFLOW);
            if refused {
                tracing::error!(import = self.name(), %transno, "the server cannot execute a request again, because it lacks the changes of another client");
                self.event(Event::ReplayRefused { conn_cnt });
                return Ok(());
            }
        }
        self.finish_part(conn_cnt);
        self.owner().replay_locks().await?;
        self.finish_part(conn_cnt);
        let ping = Request {
            reply_len: 0,
            no_resend: true,
            replay: Some(Replay::FinalPing),
            ..Request::new(OBD_PING, Vec::new())
        };
        self.call(ping).await?;
        self.core.lock().is_unrecovered = false;
        self.finish_part(conn_cnt);
        Ok(())
    }

    /// Reports that a part of the recovery is done.
    fn finish_part(&self, conn_cnt: u32) {
        self.event(Event::Replayed { conn_cnt });
        let phase = self.core.lock().phase();
        self.phase.send_replace(phase);
    }

    /// The next request to replay.
    fn next_to_replay(&self) -> Option<(Transno, UncommittedRequest)> {
        let mut core = self.core.lock();
        let handle = core.machine.handle();
        if core.replayed_to.handle != handle {
            core.replayed_to = ReplayedTo {
                handle,
                ..ReplayedTo::default()
            };
        }
        let answered = core.replayed_to.transno;
        core.uncommitted.next_to_replay(answered)
    }

    /// Replays a request. Returns the errno of the reply.
    async fn replay_request(
        self: &Arc<Self>,
        transno: Transno,
        entry: UncommittedRequest,
    ) -> Result<Option<Errno>, RpcError> {
        let sent = std::mem::replace(&mut self.core.lock().replayed_to.sent, transno);
        let executed = Executed {
            xid: entry.xid,
            tag: entry.tag,
            transno,
            pre_versions: entry.pre_versions,
            resent: sent == transno,
        };
        let request = Request {
            no_resend: true,
            return_error_replies: true,
            timeout: None,
            ends_open: None,
            replay: Some(Replay::Request(executed)),
            ..Request::clone(&entry.request)
        };
        let errno = loop {
            let reply = self.call(request.clone()).await?;
            match Errno::from_status(reply.status) {
                Some(Errno::EINPROGRESS) => sleep(REPLAY_PAUSE).await,
                errno => break errno,
            }
        };
        let mut core = self.core.lock();
        core.replayed_to.transno = transno;
        if let Some(errno) = errno {
            tracing::warn!(import = self.name(), %transno, opc = entry.request.opc, %errno, "a replayed request failed");
            // The object of a removed file is gone with its data.
            if errno != Errno::ENOENT {
                core.uncommitted.lose(entry.request);
            }
        }
        Ok(errno)
    }
}
