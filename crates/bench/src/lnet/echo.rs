//! The reference for LNet: bare TCP on loopback, with messages of the same lengths in the same
//! order. A client has one connection for small messages, and for bulk loads another one for the
//! data. The code shares nothing else with LNet.
//!
//! A client keeps its requests in flight by sending a new one for each reply. Client and server
//! write each message separately. In a batched echo of pings, they answer all messages of one read
//! with one write, which gives the highest rate that TCP achieves.

use super::LnetLoad;
use std::io;
use std::net::Ipv4Addr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::Handle;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

/// Length of a message header in bytes, as in LNet over TCP.
const HEADER: usize = 96;
/// Length of a request or reply in bytes: the header and an LNet selftest message of 160 bytes.
const MESSAGE: usize = HEADER + 160;
/// Size of a read buffer in bytes.
const BUFFER: usize = 64 << 10;

/// Message types, in the first byte. With FETCH the server requests the bulk data of a write.
const REQUEST: u8 = 1;
const REPLY: u8 = 2;
const FETCH: u8 = 3;

/// The running connections of all clients.
pub(super) struct Echo {
    /// Completed requests of each client.
    pub(super) completed: Vec<Arc<AtomicU64>>,
    stop: Arc<AtomicBool>,
    tasks: JoinSet<io::Result<()>>,
}

/// The shared sending half of a connection.
type Sender = Arc<tokio::sync::Mutex<OwnedWriteHalf>>;

impl Echo {
    /// Connects `clients` clients to a server and starts them, each with `concurrency` requests in
    /// flight.
    pub(super) async fn start(
        runtime: &Handle,
        load: LnetLoad,
        clients: usize,
        concurrency: usize,
        batched: bool,
    ) -> io::Result<Echo> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
        let stop = Arc::new(AtomicBool::new(false));
        let mut tasks = JoinSet::new();
        let mut completed = Vec::new();
        for _ in 0..clients {
            let (control, server_end) = connect_pair(&listener).await?;
            let count = Arc::new(AtomicU64::new(0));
            completed.push(count.clone());
            let client = Client {
                concurrency,
                batched,
                count,
                stop: stop.clone(),
            };
            if load == LnetLoad::Ping {
                tasks.spawn_on(client.ping(control), runtime);
                tasks.spawn_on(echo(server_end, batched), runtime);
                continue;
            }
            let (bulk, bulk_server_end) = connect_pair(&listener).await?;
            if load.is_write() {
                let (requests, to_client) = server_end.into_split();
                let to_client: Sender = Arc::new(tokio::sync::Mutex::new(to_client));
                tasks.spawn_on(fetch_bulk(requests, to_client.clone()), runtime);
                tasks.spawn_on(receive_bulk(bulk_server_end, to_client, load.bytes()), runtime);
                tasks.spawn_on(client.write(control, bulk, load.bytes()), runtime);
            } else {
                let arrived = Arc::new(Semaphore::new(0));
                tasks.spawn_on(send_bulk(server_end, bulk_server_end, load.bytes()), runtime);
                tasks.spawn_on(count_bulk(bulk, arrived.clone(), load.bytes()), runtime);
                tasks.spawn_on(client.read(control, arrived), runtime);
            }
        }
        Ok(Echo {
            completed,
            stop,
            tasks,
        })
    }

    /// Stops all connections; returns an error that ended a connection before the stop.
    pub(super) async fn stop(mut self) -> io::Result<()> {
        let ended_early = self.tasks.try_join_next();
        self.stop.store(true, Relaxed);
        self.tasks.shutdown().await;
        match ended_early {
            Some(Ok(Err(e))) => Err(e),
            _ => Ok(()),
        }
    }
}

/// Opens a connection; returns the client's and the server's end.
async fn connect_pair(listener: &TcpListener) -> io::Result<(TcpStream, TcpStream)> {
    let (client, server_end) = tokio::join!(TcpStream::connect(listener.local_addr()?), listener.accept());
    let (client, (server_end, _)) = (client?, server_end?);
    client.set_nodelay(true)?;
    server_end.set_nodelay(true)?;
    Ok((client, server_end))
}

fn message(kind: u8) -> [u8; MESSAGE] {
    let mut bytes = [0; MESSAGE];
    bytes[0] = kind;
    bytes
}

/// Reads small messages, as many at a time as have arrived.
struct MessageReader {
    from: OwnedReadHalf,
    buffer: Vec<u8>,
    /// The unread bytes of `buffer` are from `begin` to `end`.
    begin: usize,
    end: usize,
}

impl MessageReader {
    fn new(from: OwnedReadHalf) -> MessageReader {
        MessageReader {
            from,
            buffer: vec![0; BUFFER],
            begin: 0,
            end: 0,
        }
    }

    /// Takes the next message out of the buffer and returns its type; `None` if it has not arrived
    /// completely.
    fn take_buffered(&mut self) -> Option<u8> {
        let kind = *self.buffer[self.begin..self.end].first()?;
        let len = if kind == FETCH { HEADER } else { MESSAGE };
        if self.end - self.begin < len {
            return None;
        }
        self.begin += len;
        Some(kind)
    }

    /// Waits for the next message and returns its type.
    async fn next(&mut self) -> io::Result<u8> {
        loop {
            if let Some(kind) = self.take_buffered() {
                return Ok(kind);
            }
            self.buffer.copy_within(self.begin..self.end, 0);
            (self.begin, self.end) = (0, self.end - self.begin);
            match self.from.read(&mut self.buffer[self.end..]).await? {
                0 => return Err(io::ErrorKind::UnexpectedEof.into()),
                n => self.end += n,
            }
        }
    }
}

/// The server of pings: replies to each request with a message of the same length.
async fn echo(stream: TcpStream, batched: bool) -> io::Result<()> {
    let (from, mut to) = stream.into_split();
    let mut requests = MessageReader::new(from);
    let mut out = Vec::new();
    loop {
        requests.next().await?;
        out.extend_from_slice(&message(REPLY));
        while batched && requests.take_buffered().is_some() {
            out.extend_from_slice(&message(REPLY));
        }
        to.write_all(&out).await?;
        out.clear();
    }
}

/// The server of reads: for each request sends bulk data, and then a reply.
async fn send_bulk(control: TcpStream, mut bulk: TcpStream, bytes: usize) -> io::Result<()> {
    let (from, mut to) = control.into_split();
    let mut requests = MessageReader::new(from);
    let data = vec![7; HEADER + bytes];
    loop {
        requests.next().await?;
        bulk.write_all(&data).await?;
        to.write_all(&message(REPLY)).await?;
    }
}

/// One half of the server of writes: requests the bulk data of each write from the client.
async fn fetch_bulk(from: OwnedReadHalf, to: Sender) -> io::Result<()> {
    let mut requests = MessageReader::new(from);
    loop {
        requests.next().await?;
        to.lock().await.write_all(&message(FETCH)[..HEADER]).await?;
    }
}

/// The other half of the server of writes: receives bulk data and replies.
async fn receive_bulk(mut bulk: TcpStream, to: Sender, bytes: usize) -> io::Result<()> {
    let mut data = vec![0; HEADER + bytes];
    loop {
        bulk.read_exact(&mut data).await?;
        to.lock().await.write_all(&message(REPLY)).await?;
    }
}

/// Receives the bulk data of a reading client, and adds a permit to `arrived` for each transfer.
async fn count_bulk(mut bulk: TcpStream, arrived: Arc<Semaphore>, bytes: usize) -> io::Result<()> {
    let mut data = vec![0; HEADER + bytes];
    loop {
        bulk.read_exact(&mut data).await?;
        arrived.add_permits(1);
    }
}

/// A client of the echo.
struct Client {
    /// Number of requests in flight.
    concurrency: usize,
    /// Whether one write sends the pings for all replies of one read.
    batched: bool,
    /// Number of completed requests.
    count: Arc<AtomicU64>,
    stop: Arc<AtomicBool>,
}

impl Client {
    /// Sends the first requests; returns the reader of replies and the connection's sending half.
    async fn send_first_requests(&self, control: TcpStream) -> io::Result<(MessageReader, OwnedWriteHalf)> {
        let (from, mut to) = control.into_split();
        for _ in 0..self.concurrency {
            to.write_all(&message(REQUEST)).await?;
        }
        Ok((MessageReader::new(from), to))
    }

    async fn ping(self, control: TcpStream) -> io::Result<()> {
        let (mut replies, mut to) = self.send_first_requests(control).await?;
        let mut out = Vec::new();
        while !self.stop.load(Relaxed) {
            replies.next().await?;
            out.extend_from_slice(&message(REQUEST));
            while self.batched && replies.take_buffered().is_some() {
                out.extend_from_slice(&message(REQUEST));
            }
            self.count.fetch_add((out.len() / MESSAGE) as u64, Relaxed);
            to.write_all(&out).await?;
            out.clear();
        }
        Ok(())
    }

    async fn read(self, control: TcpStream, arrived: Arc<Semaphore>) -> io::Result<()> {
        let (mut replies, mut to) = self.send_first_requests(control).await?;
        while !self.stop.load(Relaxed) {
            replies.next().await?;
            match arrived.acquire().await {
                Ok(permit) => permit.forget(),
                Err(_) => return Ok(()),
            }
            self.count.fetch_add(1, Relaxed);
            to.write_all(&message(REQUEST)).await?;
        }
        Ok(())
    }

    /// Sends bulk data in a separate task, so that the client keeps reading the server's messages.
    async fn write(self, control: TcpStream, mut bulk: TcpStream, bytes: usize) -> io::Result<()> {
        let (mut from_server, mut to) = self.send_first_requests(control).await?;
        let fetches = Arc::new(Semaphore::new(0));
        let pending_fetches = fetches.clone();
        let mut sending = JoinSet::new();
        sending.spawn(async move {
            let data = vec![7; HEADER + bytes];
            while let Ok(permit) = pending_fetches.acquire().await {
                permit.forget();
                bulk.write_all(&data).await?;
            }
            io::Result::Ok(())
        });
        while !self.stop.load(Relaxed) {
            if from_server.next().await? == FETCH {
                fetches.add_permits(1);
                continue;
            }
            self.count.fetch_add(1, Relaxed);
            to.write_all(&message(REQUEST)).await?;
        }
        Ok(())
    }
}
