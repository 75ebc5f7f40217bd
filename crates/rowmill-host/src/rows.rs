use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use rowmill_nvme::{
    Command, Exchange, Fetch, FetchHeader, Form, RowDtype, Status, TableEntry, TableSpec, VENDOR_VERSION,
    VendorArea, encode_begin, encode_frame, io, page, parse_tables,
};
use rowmill_rows::IdBag;
use rowmill_sync::unranked::Mutex;
use zerocopy::{Immutable, IntoBytes};

use crate::staging::{Feature, Limits, Part, Place, plan};
use crate::{Client, HostError, NvmeUrl, Pending, Request};

/// Numbers of a result: `f32`, or `u16` for the bits of bfloat16.
pub trait Number: IntoBytes + Immutable + zerocopy::FromBytes + Copy + Default {
    /// As commands name them.
    const DTYPE: RowDtype;
}

impl Number for f32 {
    const DTYPE: RowDtype = RowDtype::Fp32;
}

impl Number for u16 {
    const DTYPE: RowDtype = RowDtype::Bf16;
}

/// The tables of a namespace of rows, at one time.
#[derive(Debug)]
pub struct Tables {
    /// Changes when a fill replaces the tables.
    pub generation: u64,
    entries: Vec<TableEntry>,
    by_name: HashMap<String, usize>,
    /// [`Client::changes`] before the list was read.
    changes: u64,
}

impl Tables {
    /// All tables, in the order of their numbers.
    pub fn entries(&self) -> &[TableEntry] {
        &self.entries
    }

    /// The table of a name.
    pub fn get(&self, name: &str) -> Option<&TableEntry> {
        self.by_name.get(name).map(|&at| &self.entries[at])
    }
}

/// What a request got.
struct Answered {
    /// Frames of the feed up to this one are applied to all rows.
    sequence: u64,
    /// Vectors whose rows cannot be read: number of the feature and of its vector.
    damaged: Vec<(usize, usize)>,
}

/// Why a part of a result must be staged again, or the whole request.
enum Retry {
    /// After this wait.
    Part(Duration),
    /// With a new list of tables.
    Tables,
}

/// A namespace of rows, for any number of threads.
///
/// Results are split so that each part is one stage and one fetch command, both sent at once on one queue. After a lost
/// connection, an unknown handle or a full node, parts are staged again until the deadline.
#[derive(Debug)]
pub struct Rows {
    client: Arc<Client>,
    namespace: u32,
    url: String,
    area: VendorArea,
    tables: Mutex<Arc<Tables>>,
    next_handle: AtomicU64,
}

/// A stage command, and the fetch of its result.
struct Sent {
    stage: Pending,
    fetch: Later,
}

/// A fetch is sent behind its stage at once, or, if the node has to ask for the data of the stage, after its answer: it
/// would overtake that data.
enum Later {
    Sent(Pending),
    Unsent(Request),
}

/// Most parts of one request at a time.
const PARTS_MAX: usize = 16;
/// The first wait before a part is sent again to a node that is full; it doubles.
const FULL_WAIT: Duration = Duration::from_millis(1);
const FULL_WAIT_MAX: Duration = Duration::from_millis(50);
/// Bytes of one read of log page 0xC0.
const PAGE_BYTES: u32 = 64 << 10;

impl Rows {
    /// The namespace of rows that a URL names. If it names none, the subsystem must have exactly one.
    ///
    /// # Errors
    ///
    /// [`HostError::Namespace`], and errors of reading its tables.
    pub fn open(client: Arc<Client>, url: &NvmeUrl) -> Result<Rows, HostError> {
        let ready = client.ready();
        let wrong = |reason: String| HostError::Namespace { url: url.to_string(), reason };
        let Some(area) = ready.area else {
            return Err(wrong(
                "has no rows, because its controller knows no commands on them: name a subsystem with store or filled in the \
                 settings of a storage node"
                    .into(),
            ));
        };
        check_version(&client)?;
        let namespaces = url.namespace.map_or_else(|| ready.namespaces.clone(), |number| vec![number]);
        let mut found = Vec::new();
        for &number in &namespaces {
            match read_tables(&client, number) {
                Ok(tables) => found.push((number, tables)),
                Err(HostError::Failed { .. }) => (),
                Err(error) => return Err(error),
            }
        }
        match found.len() {
            0 if url.namespace.is_some() => {
                let all = &ready.namespaces;
                Err(wrong(format!("is no namespace of rows: the subsystem has the namespaces {all:?}")))
            }
            0 => Err(wrong(format!("has no namespace of rows among {namespaces:?}"))),
            1 => {
                let (namespace, tables) = found.remove(0);
                let url = NvmeUrl { namespace: Some(namespace), ..url.clone() }.to_string();
                let tables = Mutex::new(Arc::new(tables));
                Ok(Rows { client, namespace, url, area, tables, next_handle: AtomicU64::new(1) })
            }
            _ => {
                let numbers: Vec<u32> = found.iter().map(|(number, _)| *number).collect();
                Err(wrong(format!(
                    "has namespaces of rows {numbers:?}: name one, as in ?namespace={}",
                    numbers[0]
                )))
            }
        }
    }

    /// The client.
    pub fn client(&self) -> &Arc<Client> {
        &self.client
    }

    /// The URL with the number of the namespace.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// The tables. Read again when they may have changed.
    ///
    /// # Errors
    ///
    /// Those of [`Client::admin`].
    pub fn tables(&self) -> Result<Arc<Tables>, HostError> {
        let tables = Arc::clone(&self.tables.lock());
        if tables.changes == self.client.changes() { Ok(tables) } else { self.read_again() }
    }

    fn read_again(&self) -> Result<Arc<Tables>, HostError> {
        // Another node may have the address since the last connection.
        check_version(&self.client)?;
        let tables = Arc::new(read_tables(&self.client, self.namespace)?);
        *self.tables.lock() = Arc::clone(&tables);
        Ok(tables)
    }

    /// Pool bags of many features, whose tables belong to one group and have `dim` weights per row. Bag `b` of feature `f`
    /// is written to `out[b * row_stride + f * dim..]`.
    ///
    /// Returns up to which frame of the feed the pooled rows are, the least of all parts.
    ///
    /// # Errors
    ///
    /// Invalid bags, unknown tables, and errors of the node that are there at the deadline. After
    /// [`HostError::Unreadable`], `out` has all vectors, but the numbers of those that the error names are NaN.
    ///
    /// # Panics
    ///
    /// If `out` has no room.
    pub fn pool<T: Number>(
        &self,
        features: &[(&str, IdBag<'_>)],
        dim: usize,
        out: &mut [T],
        row_stride: usize,
        deadline: Instant,
    ) -> Result<u64, HostError> {
        let prepared = features.iter().map(|(_, bag)| Feature::of_bag(bag));
        let prepared = prepared.collect::<Result<Vec<_>, _>>().map_err(|reason| self.argument(reason))?;
        let names: Vec<&str> = features.iter().map(|(name, _)| *name).collect();
        self.request(Form::Pooled, &names, &prepared, dim, out, Place::Columns { row_stride }, deadline)
    }

    /// Copy rows of tables of one group: those of the first table to the front of `out`, then those of the second, and so
    /// on.
    ///
    /// # Errors
    ///
    /// As [`Rows::pool`].
    ///
    /// # Panics
    ///
    /// If `out` has no room.
    pub fn get<T: Number>(
        &self,
        asked: &[(&str, &[u64])],
        out: &mut [T],
        deadline: Instant,
    ) -> Result<u64, HostError> {
        let prepared: Vec<Feature<'_>> = asked.iter().map(|(_, ids)| Feature::of_ids(ids)).collect();
        let names: Vec<&str> = asked.iter().map(|(name, _)| *name).collect();
        let ids: usize = asked.iter().map(|(_, ids)| ids.len()).sum();
        if ids == 0 {
            return Ok(0);
        }
        let dim = out.len() / ids;
        self.request(Form::Rows, &names, &prepared, dim, out, Place::InTurn, deadline)
    }

    #[allow(clippy::too_many_arguments, reason = "the parts of one request")]
    fn request<T: Number>(
        &self,
        form: Form,
        names: &[&str],
        features: &[Feature<'_>],
        dim: usize,
        out: &mut [T],
        place: Place,
        deadline: Instant,
    ) -> Result<u64, HostError> {
        let mut tables = self.tables()?;
        loop {
            let entries = self.entries(&tables, names)?;
            // A fill may have given the table another dim.
            if let Some(entry) = entries.iter().find(|entry| entry.dim as usize != dim) {
                let (name, has) = (&entry.name, entry.dim);
                let reason = format!("table {name:?} has rows of {has} weights, not {dim}: open it again");
                return Err(self.argument(reason));
            }
            let answer =
                self.try_request(form, &entries, features, out, place, tables.generation, deadline)?;
            match answer {
                Some(Answered { sequence, damaged }) if damaged.is_empty() => return Ok(sequence),
                Some(Answered { damaged, .. }) => {
                    let table = names[damaged[0].0].to_owned();
                    return Err(HostError::Unreadable { url: self.url.clone(), table, vectors: damaged });
                }
                None if Instant::now() < deadline => tables = self.read_again()?,
                None => {
                    let reason = "its tables were replaced again and again until the deadline".into();
                    return Err(HostError::Namespace { url: self.url.clone(), reason });
                }
            }
        }
    }

    fn entries<'a>(&self, tables: &'a Tables, names: &[&str]) -> Result<Vec<&'a TableEntry>, HostError> {
        let unknown = |name: &str| HostError::UnknownTable {
            url: self.url.clone(),
            table: name.to_owned(),
            tables: tables.entries.iter().map(|entry| entry.name.as_str()).collect::<Vec<_>>().join(", "),
        };
        names.iter().map(|name| tables.get(name).ok_or_else(|| unknown(name))).collect()
    }

    /// The whole request with one list of tables; `None` if that is an old one.
    #[allow(clippy::too_many_arguments, reason = "the parts of one request")]
    fn try_request<T: Number>(
        &self,
        form: Form,
        entries: &[&TableEntry],
        features: &[Feature<'_>],
        out: &mut [T],
        place: Place,
        generation: u64,
        deadline: Instant,
    ) -> Result<Option<Answered>, HostError> {
        let dim = entries.first().map_or(0, |entry| entry.dim as usize);
        let capsule_bytes = self.client.ready().capsule_data_bytes;
        let limits = Limits {
            capsule_bytes,
            transfer_bytes: self
                .client
                .ready()
                .transfer_bytes_max
                .min(self.area.transfer_bytes_max.get() as usize),
            features: self.area.features_max.get() as usize,
            vector_bytes: dim * size_of::<T>(),
        };
        let parts = plan(features, form, limits).map_err(|reason| self.argument(reason))?;
        let numbers: Vec<u32> = entries.iter().map(|entry| entry.table).collect();
        let mut answered = Answered { sequence: u64::MAX, damaged: Vec::new() };
        let mut sent = std::collections::VecDeque::new();
        let mut next = parts.iter();
        loop {
            while sent.len() < PARTS_MAX
                && let Some(part) = next.next()
            {
                sent.push_back((
                    part,
                    self.send(part, &numbers, features, form, T::DTYPE, limits, deadline)?,
                ));
            }
            let Some((part, mut pending)) = sent.pop_front() else { break };
            let mut full_wait = FULL_WAIT;
            let data = loop {
                match self.receive(pending, generation, part.vectors * limits.vector_bytes, deadline) {
                    Ok(Ok((data, header))) => {
                        answered.sequence = answered.sequence.min(header.sequence.get());
                        let count = header.damaged.get();
                        if count > 0 {
                            let vectors = &data[size_of::<FetchHeader>()..];
                            let damaged = part.damaged(vectors, limits.vector_bytes, count);
                            answered.damaged.extend(damaged.ok_or_else(|| self.damaged_answer())?);
                        }
                        break data;
                    }
                    Ok(Err(Retry::Tables)) => return Ok(None),
                    Ok(Err(Retry::Part(wait))) => {
                        std::thread::sleep(if wait.is_zero() { wait } else { full_wait });
                        full_wait = (full_wait * 2).min(FULL_WAIT_MAX);
                    }
                    Err(error) => return Err(error),
                }
                pending = self.send(part, &numbers, features, form, T::DTYPE, limits, deadline)?;
            };
            part.place(&data[size_of::<FetchHeader>()..], features, out, place, dim);
        }
        if answered.sequence == u64::MAX {
            answered.sequence = 0;
        }
        Ok(Some(answered))
    }

    #[allow(clippy::too_many_arguments, reason = "the parts of one request")]
    fn send(
        &self,
        part: &Part,
        numbers: &[u32],
        features: &[Feature<'_>],
        form: Form,
        dtype: RowDtype,
        limits: Limits,
        deadline: Instant,
    ) -> Result<Sent, HostError> {
        let handle = self.next_handle.fetch_add(1, Ordering::Relaxed);
        let (command, data) = part.encode(self.namespace, handle, form, dtype, numbers, features);
        let is_whole = data.len() <= limits.capsule_bytes;
        let stage = Request { name: "stage", command, exchange: Exchange::Send(data), is_repeatable: false };
        let bytes = size_of::<FetchHeader>() + part.vectors * limits.vector_bytes;
        let command = Fetch { handle, offset: 0, is_kept: false, takes_damaged: true };
        let command = command.to_command(self.namespace);
        let exchange = Exchange::Receive(bytes.next_multiple_of(4));
        let fetch = Request { name: "fetch", command, exchange, is_repeatable: false };
        if !is_whole {
            return Ok(Sent { stage: self.client.submit(stage, deadline)?, fetch: Later::Unsent(fetch) });
        }
        let mut pending = self.client.submit_in_order(vec![stage, fetch], deadline)?;
        let fetch = Later::Sent(pending.remove(1));
        Ok(Sent { stage: pending.remove(0), fetch })
    }

    fn damaged_answer(&self) -> HostError {
        HostError::Damaged { url: self.url.clone(), command: "fetch" }
    }

    /// The answer of a fetch, of which `bytes` bytes count after the header.
    fn receive(
        &self,
        sent: Sent,
        generation: u64,
        bytes: usize,
        deadline: Instant,
    ) -> Result<Result<(Vec<u8>, FetchHeader), Retry>, HostError> {
        let Sent { stage, fetch } = sent;
        let fetched = stage.wait().and_then(|_| match fetch {
            Later::Sent(fetch) => fetch.wait(),
            Later::Unsent(fetch) => self.client.submit(fetch, deadline)?.wait(),
        });
        let error = match fetched {
            Ok(completed) => {
                let (header, part) =
                    FetchHeader::parse(&completed.data).ok_or_else(|| self.damaged_answer())?;
                if header.generation.get() != generation {
                    return Ok(Err(Retry::Tables));
                }
                if part.len() != bytes || header.total_bytes.get() != bytes as u64 {
                    return Err(self.damaged_answer());
                }
                return Ok(Ok((completed.data, header)));
            }
            Err(error) => error,
        };
        match error {
            // A new connection has a new controller, which knows no handles of the last one.
            HostError::Lost { .. } => Ok(Err(Retry::Part(Duration::ZERO))),
            HostError::Failed { status, .. } => match status {
                Status::UNKNOWN_HANDLE | Status::HANDLE_IN_USE | Status::TRANSIENT_TRANSPORT_ERROR => {
                    Ok(Err(Retry::Part(Duration::ZERO)))
                }
                Status::OVER_QUOTA | Status::RATE_EXCEEDED => Ok(Err(Retry::Part(FULL_WAIT))),
                Status::UNKNOWN_TABLE if self.tables.lock().changes != self.client.changes() => {
                    Ok(Err(Retry::Tables))
                }
                _ => Err(error),
            },
            error => Err(error),
        }
    }

    /// Begin a fill: `tables`, in the order of their numbers, replace those of the namespace when it ends.
    ///
    /// # Errors
    ///
    /// [`HostError::Argument`] if the tables do not fit into one command; errors of the node.
    pub fn begin_fill(
        &self,
        seed: u64,
        tables: &[TableSpec<'_>],
        deadline: Instant,
    ) -> Result<(), HostError> {
        let (command, data) = encode_begin(self.namespace, seed, tables);
        let bytes_max = self.client.ready().transfer_bytes_max;
        if data.len() > bytes_max {
            let bytes = data.len();
            let reason =
                format!("the specs of {} tables have {bytes} bytes; a fill takes {bytes_max}", tables.len());
            return Err(self.argument(reason));
        }
        self.apply("begin a fill", command, Exchange::Send(data), deadline)?.wait().map(drop)
    }

    /// Send a frame of a fill or of the feed, without waiting for its answer. The node applies the frames of one queue in
    /// their order, and refuses a frame that does not follow the last one. `skipped` sequence numbers before it belong to no frame.
    ///
    /// # Errors
    ///
    /// Those of [`Client::submit`].
    pub fn send_frame(
        &self,
        sequence: u64,
        skipped: u64,
        payload: &[u8],
        deadline: Instant,
    ) -> Result<Pending, HostError> {
        let (command, data) = encode_frame(self.namespace, sequence, skipped, payload);
        self.apply("apply a frame", command, Exchange::Send(data), deadline)
    }

    /// End a fill: its rows have all frames of the feed up to `sequence`.
    ///
    /// # Errors
    ///
    /// Errors of the node.
    pub fn end_fill(&self, sequence: u64, deadline: Instant) -> Result<(), HostError> {
        let command = rowmill_nvme::Apply::end(self.namespace, sequence);
        self.apply("end a fill", command, Exchange::None, deadline)?.wait()?;
        // The notice that the tables have changed may come later than the answer.
        self.read_again().map(drop)
    }

    fn apply(
        &self,
        name: &'static str,
        command: Command,
        exchange: Exchange,
        deadline: Instant,
    ) -> Result<Pending, HostError> {
        debug_assert_eq!(command.opcode, io::APPLY);
        self.client.submit(Request { name, command, exchange, is_repeatable: false }, deadline)
    }

    fn argument(&self, reason: String) -> HostError {
        HostError::Argument { url: self.url.clone(), reason }
    }
}

/// Refuse a node that has other layouts of the commands on rows.
fn check_version(client: &Client) -> Result<(), HostError> {
    match client.ready().area.map(|area| area.version.get()) {
        Some(version) if version != VENDOR_VERSION => {
            let older = if version < VENDOR_VERSION { "the node" } else { "this host" };
            let reason = format!(
                "has version {version} of the commands on rows, and this host has version {VENDOR_VERSION}: install a newer \
                 rowmill on {older}"
            );
            Err(HostError::Namespace { url: client.url().to_owned(), reason })
        }
        _ => Ok(()),
    }
}

fn read_tables(client: &Client, namespace: u32) -> Result<Tables, HostError> {
    loop {
        let changes = client.changes();
        let mut bytes = client.log_page(page::TABLES, namespace, 0, PAGE_BYTES)?;
        let damaged =
            || HostError::Damaged { url: client.url().to_owned(), command: "Get Log Page (tables)" };
        let whole = rowmill_nvme::tables_bytes(&bytes).ok_or_else(damaged)?;
        while bytes.len() < whole {
            let rest = (whole - bytes.len()).next_multiple_of(4).min(PAGE_BYTES as usize);
            bytes.extend(client.log_page(page::TABLES, namespace, bytes.len() as u64, rest as u32)?);
        }
        // The parts of a longer page must be of one time.
        if client.changes() != changes {
            continue;
        }
        let (header, entries) = parse_tables(&bytes).ok_or_else(damaged)?;
        let by_name = entries.iter().enumerate().map(|(at, entry)| (entry.name.clone(), at)).collect();
        return Ok(Tables { generation: header.generation.get(), entries, by_name, changes });
    }
}
