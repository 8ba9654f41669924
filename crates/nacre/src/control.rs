//! The control socket: how commands talk to a running process.
//!
//! One connection carries one request and its answer, each a line of JSON. The kernel tells the server who asks: reading
//! is for everybody who can reach the socket, changing and stopping only for the process's own user and root.

use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail};
use cpt::BoxFuture;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt};

use crate::cmd::lnetctl::Op;
use crate::cmd::nodemap::Change;
use crate::node::MountRequest;
use crate::output;
use crate::publish::with_short_path;

/// A line longer than this is not a request of ours.
const LINE_MAX: u64 = 1 << 20;

/// What a command asks of a running process.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(tag = "op", rename_all = "snake_case")]
pub(crate) enum Request {
    /// Its record, with what is going on now.
    Status,
    /// Unmount and stop; refused while a mount is in use, unless lazily.
    Stop { lazy: bool },
    /// Names and values of parameters.
    GetParam { pattern: String },
    /// Names of parameters.
    ListParam { pattern: String, recursive: bool },
    /// Mounts here for a command that was told these start parameters and is in this mount namespace.
    Mount {
        mount: MountRequest,
        told: Vec<String>,
        mount_ns: String,
    },
    /// Undoes a mount; refused while it is in use, unless lazily.
    Umount { mountpoint: PathBuf, lazy: bool },
    /// Sets parameters here.
    SetParam { pattern: String, value: String },
    /// Keeps a parameter for every node (no value: deletes it).
    KeepParam { name: String, value: Option<String> },
    /// Changes the nodemaps of the MGS here.
    Nodemap(Change),
    /// NIDs of a node.
    Ping { nid: String, timeout_s: u64 },
    /// Targets and imports.
    Devices,
    /// Networks, routes and peers.
    Lnet(Op),
    /// Space of each target, as the client of a mount sees it.
    Df { mountpoint: PathBuf },
    /// FIDs of paths below a mount.
    Path2fid {
        mountpoint: PathBuf,
        paths: Vec<PathBuf>,
    },
    /// A command for the LNet selftest console of this process.
    Lst { command: lst::console::Command },
    /// What nodes of LNet selftest have counted.
    LstCounts { names: Vec<String>, timeout_s: u64 },
    /// Names of FIDs.
    Fid2path { mountpoint: PathBuf, fids: Vec<String> },
}

impl Request {
    /// Whether only the owner may ask this.
    fn for_owner(&self) -> bool {
        match self {
            Request::Mount { .. } | Request::Umount { .. } => true,
            Request::Stop { .. } | Request::SetParam { .. } | Request::KeepParam { .. } => true,
            Request::Lst { .. } | Request::LstCounts { .. } | Request::Nodemap(_) => true,
            // Names below directories that the asking user may not read.
            Request::Fid2path { .. } => true,
            Request::Lnet(op) => op.changes(),
            Request::Status
            | Request::Path2fid { .. }
            | Request::GetParam { .. }
            | Request::ListParam { .. }
            | Request::Ping { .. }
            | Request::Devices
            | Request::Df { .. } => false,
        }
    }
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Answer {
    Ok(Value),
    Error(String),
}

/// Who asks, as the kernel says.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Asker {
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    pub(crate) pid: u32,
}

/// Who answers.
pub(crate) trait Handler: Send + Sync + 'static {
    /// Answers a request that its sender is entitled to.
    fn handle(self: Arc<Self>, request: Request, asker: Asker) -> BoxFuture<'static, Result<Value>>;
}

/// Listens at `path` and answers until the task is aborted.
pub(crate) fn listen(path: &Path, handler: Arc<dyn Handler>) -> Result<tokio::task::JoinHandle<()>> {
    let cannot = || format!("cannot listen at the control socket {}", path.display());
    let listener = tokio::net::UnixListener::bind(path).with_context(cannot)?;
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o666)).with_context(cannot)?;
    Ok(tokio::spawn(async move {
        loop {
            match listener.accept().await {
                Ok((stream, _)) => {
                    tokio::spawn(serve(stream, handler.clone()));
                }
                Err(e) => {
                    tracing::warn!("control socket: {e}");
                    tokio::time::sleep(Duration::from_millis(100)).await;
                }
            }
        }
    }))
}

async fn serve(mut stream: tokio::net::UnixStream, handler: Arc<dyn Handler>) {
    let asker = stream.peer_cred().map(|c| Asker {
        uid: c.uid(),
        gid: c.gid(),
        pid: c.pid().map_or(0, |pid| pid as u32),
    });
    let (reader, mut writer) = stream.split();
    let mut line = String::new();
    let mut reader = tokio::io::BufReader::new(reader.take(LINE_MAX));
    if !matches!(reader.read_line(&mut line).await, Ok(n) if n > 0) {
        return;
    }
    let answer = match (serde_json::from_str::<Request>(&line), asker) {
        (Err(e), _) => Err(anyhow!("request not understood: {e}")),
        (_, Err(e)) => Err(anyhow!("the kernel does not say who asks: {e}")),
        (Ok(request), Ok(asker)) if request.for_owner() && !may_change(asker.uid) => Err(anyhow!(
            "only the user that runs this file system, or root, may do this"
        )),
        (Ok(request), Ok(asker)) => handler.handle(request, asker).await,
    };
    let answer = answer.map_or_else(|e| Answer::Error(output::describe(&e)), Answer::Ok);
    let mut text = serde_json::to_string(&answer).unwrap_or_else(|e| format!("{{\"error\":\"{e}\"}}"));
    text.push('\n');
    // A command that went away meanwhile does not want its answer.
    let _ = writer.write_all(text.as_bytes()).await;
}

fn may_change(uid: u32) -> bool {
    uid == 0 || uid == crate::running::uid()
}

/// Asks the process behind a control socket and waits for its answer.
pub(crate) fn ask(socket: &Path, request: &Request, timeout: Duration) -> Result<Value> {
    let cannot = || format!("no answer at the control socket {}", socket.display());
    let mut stream = with_short_path(socket, |path| UnixStream::connect(path)).with_context(cannot)?;
    stream.set_read_timeout(Some(timeout)).with_context(cannot)?;
    let mut line = serde_json::to_string(request)?;
    line.push('\n');
    stream.write_all(line.as_bytes()).with_context(cannot)?;
    let mut answer = String::new();
    BufReader::new(stream.take(16 * LINE_MAX))
        .read_line(&mut answer)
        .with_context(cannot)?;
    match serde_json::from_str(&answer).with_context(cannot)? {
        Answer::Ok(value) => Ok(value),
        Answer::Error(why) => bail!(why),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    struct Echo;
    impl Handler for Echo {
        fn handle(self: Arc<Self>, request: Request, _: Asker) -> BoxFuture<'static, Result<Value>> {
            Box::pin(async move {
                match request {
                    Request::GetParam { pattern } => Ok(Value::String(pattern)),
                    _ => bail!("not today"),
                }
            })
        }
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_request_gets_its_answer_or_its_error() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("s");
        let task = listen(&path, Arc::new(Echo)).unwrap();
        let asked = tokio::task::spawn_blocking(move || {
            let wait = Duration::from_secs(10);
            let got = ask(
                &path,
                &Request::GetParam {
                    pattern: "a.*".to_owned(),
                },
                wait,
            );
            (got, ask(&path, &Request::Status, wait))
        });
        let (got, refused) = asked.await.unwrap();
        assert_eq!(got.unwrap(), Value::String("a.*".to_owned()));
        assert_eq!(refused.unwrap_err().to_string(), "not today");
        task.abort();
    }
}
