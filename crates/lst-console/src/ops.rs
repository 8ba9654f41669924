//! The console's commands for the session, its groups, and counters of nodes; [`crate::batches`]
//! has the commands for batches and tests.

use crate::command::{Command, CommandOutput, GroupCounts, GroupUpdate, NodeCounts, NodeState, PingTarget};
use crate::text::{self, NODES_TITLE};
use crate::transact::{CALL_TIMEOUT, NodeReply};
use crate::{Inner, ids};
use std::time::Duration;
use tokio::time::Instant;
use wire::{
    Errno, LST_NAME_SIZE, Nid, SrpcBody, SrpcDebugReqst, SrpcMksnReqst, SrpcRmsnReqst, SrpcStatReply,
    SrpcStatReqst, Text,
};

/// Maximum number of nodes in a session.
const NODES_MAX: usize = 1 << 14;

/// Time limit for the error counters of a group's nodes.
const SHOW_ERROR_TIMEOUT: Duration = Duration::from_secs(10);

/// Every state.
pub(super) const ALL_STATES: [NodeState; 4] = [
    NodeState::Active,
    NodeState::Busy,
    NodeState::Down,
    NodeState::Unknown,
];

/// A result, or the error message for the user.
pub(super) type Result<T> = std::result::Result<T, String>;

impl CommandOutput {
    pub(super) fn success(out: impl Into<String>) -> CommandOutput {
        CommandOutput {
            out: out.into(),
            err: String::new(),
            ok: true,
        }
    }

    pub(super) fn failure(message: impl Into<String>) -> CommandOutput {
        CommandOutput {
            out: String::new(),
            err: message.into() + "\n",
            ok: false,
        }
    }
}

/// The message for an errno about a group, batch or test.
pub(super) fn error_message(object: &str, errno: Errno) -> String {
    match errno {
        Errno::ENOENT => format!("there is no {object} in this session"),
        Errno::EEXIST => format!("{object} already exists"),
        Errno::EBUSY => format!("{object} is used by a test"),
        e => format!("{object}: {e}"),
    }
}

/// Checks that a name fits into the protocol's fields.
pub(super) fn check_name(name: &str) -> Result<()> {
    if name.is_empty() || name.len() >= LST_NAME_SIZE as usize || name.contains('\0') {
        return Err(format!(
            "'{name}': a name has from 1 to {} bytes",
            LST_NAME_SIZE - 1
        ));
    }
    Ok(())
}

/// One line for each node that did not reply to `operation` or replied with an error. Statuses in
/// `ignored` are not failures.
pub(super) fn failures(operation: &str, replies: &[NodeReply], ignored: &[u32]) -> String {
    let line = |r: &NodeReply| match r.status() {
        Err(e) => Some(format!(
            "{operation} RPC failed on {}: {e}{}\n",
            text::process_id(r.nid),
            hint(e)
        )),
        Ok(status) if status == 0 || ignored.contains(&status) => None,
        Ok(status) => Some(format!(
            "operation {operation} failed on {}: {}\n",
            text::process_id(r.nid),
            Errno(status as i32)
        )),
    };
    replies.iter().filter_map(line).collect()
}

/// The advice about a node without a reply.
fn hint(e: Errno) -> &'static str {
    match e {
        Errno::ETIMEDOUT => {
            ": no answer; servers and mounts answer only if they were started with --param lnet_selftest=1"
        }
        Errno::ECONNREFUSED | Errno::EHOSTUNREACH | Errno::EINVAL => {
            ": run `nacre lst node` there; the console must have an address that reaches it (new_session --listen)"
        }
        _ => "",
    }
}

impl Inner {
    pub(super) async fn execute(&self, command: Command) -> CommandOutput {
        let stop = match &command {
            Command::Stop { name, .. } => Some(name.clone()),
            _ => None,
        };
        let output = {
            let _guard = self.command_lock.lock().await;
            self.dispatch(command)
                .await
                .unwrap_or_else(CommandOutput::failure)
        };
        match stop {
            // Other commands may run during this wait.
            Some(name) if output.ok => self.wait_until_stopped(&name, output).await,
            _ => output,
        }
    }

    async fn dispatch(&self, command: Command) -> Result<CommandOutput> {
        match command {
            Command::EndSession => Ok(self.end_session().await),
            Command::ShowSession => Ok(CommandOutput::success(self.show_session())),
            Command::Ping { target, timeout_s } => self.ping(&target, timeout_s).await,
            Command::AddGroup { name, ids } => self.add_group(&name, &ids).await,
            Command::DelGroup { name } => self.del_group(&name).await,
            Command::UpdateGroup { name, update } => self.update_group(&name, update).await,
            Command::ListGroup { names, states } => self.list_group(&names, states.as_deref()),
            Command::ShowError { names, session_only } => self.show_error(&names, session_only).await,
            Command::AddBatch { name } => self.add_batch(&name),
            Command::Run { name, timeout_s } => self.run(&name, timeout_s).await,
            Command::Stop { name, force } => self.stop(&name, force).await,
            Command::ListBatch {
                name,
                test,
                server,
                nodes,
            } => match name {
                None => Ok(CommandOutput::success(self.list_batches())),
                Some(name) => self.list_batch(&name, test, server, nodes),
            },
            Command::Query {
                name,
                test,
                server,
                timeout_s,
                verbose,
            } => self.query(&name, test, server, timeout_s, verbose).await,
            Command::AddTest(test) => self.add_test(&test).await,
        }
    }
}

// ---- the session

impl Inner {
    fn show_session(&self) -> String {
        let state = self.state.lock();
        let (name, key) = (&self.config.name, self.config.key);
        let (stamp, nid) = (state.sid.ses_stamp, state.sid.ses_nid);
        let (feats, nodes) = (state.feats, state.nodes.len());
        format!("{name} ID: {stamp}@{nid}, KEY: {key} FEATURES: {feats:x} NODES: {nodes}\n")
    }

    async fn end_session(&self) -> CommandOutput {
        let replies = self.end().await;
        let err = failures("end session", &replies, &[Errno::ESRCH.0 as u32]);
        CommandOutput {
            out: "session is ended\n".to_owned(),
            ok: err.is_empty(),
            err,
        }
    }

    async fn ping(&self, target: &PingTarget, timeout_s: u64) -> Result<CommandOutput> {
        let nids: Vec<Nid> = {
            let state = self.state.lock();
            match target {
                PingTarget::Session => state.nodes.iter().map(|n| n.nid).collect(),
                PingTarget::Group(name) => {
                    let group = state
                        .group(name)
                        .map_err(|e| error_message(&format!("group {name}"), e))?;
                    group.nids.clone()
                }
                PingTarget::Batch(name, servers) => {
                    let batch = state
                        .batch(name)
                        .map_err(|e| error_message(&format!("batch {name}"), e))?;
                    if *servers {
                        batch.servers.clone()
                    } else {
                        batch.clients.clone()
                    }
                }
                PingTarget::Nodes(list) => ids::parse(list)?,
            }
        };
        if nids.is_empty() {
            return Ok(CommandOutput::success("there are no nodes\n"));
        }
        let debug = SrpcDebugReqst {
            dbg_sid: self.sid(),
            ..SrpcDebugReqst::default()
        };
        let replies = self
            .call_nodes(
                nids.into_iter().map(|nid| (nid, debug.into())),
                Duration::from_secs(timeout_s),
            )
            .await;
        let line = |r: &NodeReply| {
            let session = match (&r.reply, r.state) {
                (Ok(reply), NodeState::Active | NodeState::Busy) => match &reply.body {
                    SrpcBody::DebugReply(debug) => debug.dbg_name.to_string(),
                    _ => "Unknown".to_owned(),
                },
                _ => "<NULL>".to_owned(),
            };
            let session_nid = r.sid().map_or(Nid::ANY, |sid| sid.ses_nid);
            format!(
                "\t{}: {} [session: {session} id: {session_nid}]\n",
                text::process_id(r.nid),
                r.state.name()
            )
        };
        let out = replies.iter().map(line).collect::<String>();
        self.state.lock().remove_unused_nodes();
        Ok(CommandOutput::success(out))
    }
}

// ---- groups

impl Inner {
    async fn add_group(&self, name: &str, lists: &[String]) -> Result<CommandOutput> {
        check_name(name)?;
        self.state
            .lock()
            .add_group(name)
            .map_err(|e| error_message(&format!("group {name}"), e))?;
        let requested_feats = self.state.lock().feats;
        let mut output = CommandOutput::success("");
        let mut added = false;
        for list in lists {
            let nids = match ids::parse(list) {
                Ok(nids) => nids,
                Err(e) => {
                    output.err += &format!("{e}: skipped\n");
                    continue;
                }
            };
            let failed = self.invite(name, nids).await;
            if !failed.is_empty() {
                output.err += &failed;
                output.ok = false;
                break;
            }
            output.out += &format!("{list} are added to session\n");
            added = true;
            let missing = requested_feats & !self.state.lock().feats;
            if missing != 0 {
                output.out += &format!(
                    "Warning: some nodes do not support these features: {missing:x}; the session does not use them\n"
                );
            }
        }
        if !added {
            output.err += &format!("no node was added: group {name} is deleted\n");
            output.ok = false;
            output.out += &self.del_group(name).await?.out;
        }
        Ok(output)
    }

    /// Adds nodes to a group, and creates the session on those that are not active; returns the
    /// failures.
    async fn invite(&self, name: &str, nids: Vec<Nid>) -> String {
        let new_nodes: Vec<Nid> = {
            let mut state = self.state.lock();
            let node_count_max = state.nodes.len() + nids.len();
            let Some(group) = state.groups.iter_mut().find(|g| g.name == name) else {
                return error_message(&format!("group {name}"), Errno::ENOENT) + "\n";
            };
            if node_count_max > NODES_MAX {
                return format!("a session has at most {NODES_MAX} nodes\n");
            }
            for &nid in &nids {
                if !group.nids.contains(&nid) {
                    group.nids.push(nid);
                }
            }
            nids.into_iter()
                .filter(|&nid| state.state_of(nid) != NodeState::Active)
                .collect()
        };
        let mksn = SrpcMksnReqst {
            mksn_sid: self.sid(),
            mksn_force: self.config.force.into(),
            mksn_name: Text::truncated(&self.config.name),
            ..SrpcMksnReqst::default()
        };
        let mut replies = self
            .call_nodes(new_nodes.into_iter().map(|nid| (nid, mksn.into())), CALL_TIMEOUT)
            .await;
        let mut features_differ = false;
        let mut state = self.state.lock();
        for r in &mut replies {
            let Ok(reply) = &mut r.reply else { continue };
            let SrpcBody::MksnReply(mksn_reply) = &mut reply.body else {
                r.reply = Err(Errno::EBADMSG);
                continue;
            };
            if mksn_reply.mksn_status == 0 && !state.accept_features(reply.feats) {
                mksn_reply.mksn_status = Errno::EPROTO.0 as u32;
            }
            features_differ |= mksn_reply.mksn_status == Errno::EPROTO.0 as u32;
            let timeout_s = mksn_reply.mksn_timeout;
            state.node_entry(Instant::now(), r.nid).timeout_s = timeout_s;
        }
        let mut failed = failures("create session", &replies, &[]);
        if features_differ {
            failed += "nodes support different features: set LST_FEATURES=0 to use only the common ones\n";
        }
        failed
    }

    /// Ends the session on some nodes; returns their replies.
    async fn end_session_on(&self, nids: Vec<Nid>) -> Vec<NodeReply> {
        let rmsn = SrpcRmsnReqst {
            rmsn_sid: self.sid(),
            ..SrpcRmsnReqst::default()
        };
        self.call_nodes(nids.into_iter().map(|nid| (nid, rmsn.into())), CALL_TIMEOUT)
            .await
    }

    async fn del_group(&self, name: &str) -> Result<CommandOutput> {
        let unshared_nodes = {
            let mut state = self.state.lock();
            let group = state
                .unused_group_mut(name)
                .map_err(|e| error_message(&format!("group {name}"), e))?;
            let nids = group.nids.clone();
            state.nodes_used_only_by(name, &nids)
        };
        let replies = self.end_session_on(unshared_nodes).await;
        let mut state = self.state.lock();
        state.groups.retain(|g| g.name != name);
        state.remove_unused_nodes();
        let err = failures("end session", &replies, &[Errno::ESRCH.0 as u32]);
        Ok(CommandOutput {
            out: "Group is deleted\n".to_owned(),
            ok: err.is_empty(),
            err,
        })
    }

    async fn update_group(&self, name: &str, update: GroupUpdate) -> Result<CommandOutput> {
        let nids = {
            let mut state = self.state.lock();
            let group = state
                .unused_group_mut(name)
                .map_err(|e| error_message(&format!("group {name}"), e))?;
            group.nids.clone()
        };
        let err = match update {
            GroupUpdate::Refresh => self.invite(name, nids).await,
            GroupUpdate::Clean(states) => {
                let mut state = self.state.lock();
                let removed: Vec<Nid> = nids
                    .into_iter()
                    .filter(|&nid| states.contains(&state.state_of(nid)))
                    .collect();
                state.remove_from(name, |nid| removed.contains(&nid));
                String::new()
            }
            GroupUpdate::Remove(list) => {
                let removed = ids::parse(&list)?;
                let unshared_nodes = self.state.lock().nodes_used_only_by(name, &removed);
                let replies = self.end_session_on(unshared_nodes).await;
                self.state.lock().remove_from(name, |nid| removed.contains(&nid));
                failures("update group", &replies, &[Errno::ESRCH.0 as u32])
            }
        };
        Ok(CommandOutput {
            out: String::new(),
            ok: err.is_empty(),
            err,
        })
    }

    fn list_group(&self, names: &[String], states: Option<&[NodeState]>) -> Result<CommandOutput> {
        let state = self.state.lock();
        if names.is_empty() {
            let lines = state
                .groups
                .iter()
                .enumerate()
                .map(|(i, g)| format!("{}) {}\n", i + 1, g.name));
            return Ok(CommandOutput::success(
                lines.collect::<String>() + &format!("Total {} groups\n", state.groups.len()),
            ));
        }
        let mut out = if states.is_none() {
            NODES_TITLE.to_owned()
        } else {
            String::new()
        };
        for name in names {
            let group = state
                .group(name)
                .map_err(|e| error_message(&format!("group {name}"), e))?;
            match states {
                None => out += &format!("{}\t{name}\n", state.tally(&group.nids).columns()),
                Some(states) => {
                    let (lines, count) = text::node_lines(&state, &group.nids, states);
                    out += &format!("Group [ {name} ]\n{lines}Total {count} nodes [ {name} ]\n");
                }
            }
        }
        Ok(CommandOutput::success(out))
    }

    // ---- counters

    /// The nodes of a group or a list.
    fn nids_of(&self, name: &str) -> Result<Vec<Nid>> {
        match self.state.lock().group(name) {
            Ok(group) => Ok(group.nids.clone()),
            Err(_) if name.contains('@') => ids::parse(name),
            Err(e) => Err(error_message(&format!("group {name}"), e)),
        }
    }

    /// The statistics of the nodes of a group or a list; `None` for nodes that do not reply with
    /// them.
    async fn stat(&self, name: &str, limit: Duration) -> Result<Vec<(Nid, Option<SrpcStatReply>)>> {
        let stat = SrpcStatReqst {
            str_sid: self.sid(),
            ..SrpcStatReqst::default()
        };
        let replies = self
            .call_nodes(
                self.nids_of(name)?.into_iter().map(|nid| (nid, stat.into())),
                limit,
            )
            .await;
        self.state.lock().remove_unused_nodes();
        let stat_of = |r: NodeReply| match r.reply.map(|reply| reply.body) {
            Ok(SrpcBody::StatReply(stat)) if stat.str_status == 0 => (r.nid, Some(stat)),
            _ => (r.nid, None),
        };
        Ok(replies.into_iter().map(stat_of).collect())
    }

    pub(super) async fn counts(&self, names: &[String], timeout: Duration) -> Result<Vec<GroupCounts>> {
        let _guard = self.command_lock.lock().await;
        let mut groups = Vec::new();
        for name in names {
            let stats = self.stat(name, timeout).await?;
            let counters = |(nid, stat): &(Nid, Option<SrpcStatReply>)| {
                stat.as_ref()
                    .map(|s| NodeCounts::new(nid.to_string(), &s.str_fw, &s.str_lnet))
            };
            groups.push(GroupCounts {
                name: name.clone(),
                nodes: stats.iter().filter_map(counters).collect(),
                failed: stats.iter().filter(|(_, stat)| stat.is_none()).count(),
            });
        }
        Ok(groups)
    }

    async fn show_error(&self, names: &[String], session_only: bool) -> Result<CommandOutput> {
        let mut output = CommandOutput::success("");
        for name in names {
            let mut error_nodes = 0;
            output.out += &format!("{name}:\n");
            for (nid, stat) in self.stat(name, SHOW_ERROR_TIMEOUT).await? {
                let Some(stat) = stat else {
                    error_nodes += 1;
                    output.err += &format!(
                        "{} did not reply with its error counters\n",
                        text::process_id(nid)
                    );
                    continue;
                };
                let (fw, rpc) = (stat.str_fw, stat.str_rpc);
                let has_session_errors = fw.brw_errors != 0 || fw.ping_errors != 0;
                if !has_session_errors && (session_only || rpc.errors == 0) {
                    continue;
                }
                error_nodes += 1;
                let (brw, ping) = (fw.brw_errors, fw.ping_errors);
                output.err += &format!(
                    "{}: [Session {brw} brw errors, {ping} ping errors]",
                    text::process_id(nid)
                );
                if !session_only {
                    let (errors, dropped, expired) = (rpc.errors, rpc.rpcs_dropped, rpc.rpcs_expired);
                    output.err += &format!(" [RPC: {errors} errors, {dropped} dropped, {expired} expired]");
                }
                output.err += "\n";
            }
            output.out += &format!("Total {error_nodes} error nodes in {name}\n");
        }
        Ok(output)
    }
}
