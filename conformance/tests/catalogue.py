"""The catalogue of faults: for each entry the laws that are about it, and the planted stores that show that they catch it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Entry:
    """One fault that a store may have.

    Attributes:
        chapter: The chapter of the catalogue.
        fault: What it does.
        laws: The laws that are about it.
        stores: Planted stores that have it.
    """

    chapter: str
    fault: str
    laws: tuple[str, ...]
    stores: tuple[str, ...]


def chapter(name: str, text: str) -> list[Entry]:
    """Read a chapter: one entry a line, as `fault | laws | stores`."""
    rows = [[cell.strip() for cell in line.split("|")] for line in text.strip().splitlines()]
    return [Entry(name, fault, tuple(laws.split()), tuple(stores.split())) for fault, laws, stores in rows]


CATALOGUE: tuple[Entry, ...] = (
    *chapter(
        "sessions",
        """
        order across batches | sessions-order-across-batches | AppendOverwrites RetryStoresTwice
        order inside a batch | sessions-order-inside-a-batch | ReversesBatches
        lexical order past 9 | sessions-order-across-batches | LexicalOrder
        sorted by id or time | sessions-order-inside-a-batch | SortsByContent
        append overwrites | sessions-order-across-batches | AppendOverwrites
        missing reads as empty | sessions-absent-is-none | EmptyForMissing
        empty reads as missing | sessions-empty-is-not-absent | MissingForEmpty
        append of nothing does not create | sessions-append-of-nothing-creates | EmptyAppendDoesNothing
        append of nothing does not raise the version | sessions-append-of-nothing-keeps-all | EmptyAppendKeepsTheVersion
        append of nothing truncates | sessions-append-of-nothing-keeps-all | EmptyAppendTruncates
        duplicate on retry | sessions-errors-tell-the-truth append-once-is-safe-to-repeat | RetryStoresTwice RetriesInside
        drops equal records as duplicates | sessions-equal-records-are-all-kept | DropsEqualRecords
        read cap at 1,000 | sessions-no-cap-on-a-read | CapsReads
        batch cap at 25 | sessions-no-cap-on-a-read | CapsBatches
        count not raised | sessions-count-follows-records sessions-windows-tell-the-whole-head | CountFromTheWindow
        version not raised | sessions-write-adds-one | EmptyAppendDoesNothing
        version reset by replace | sessions-replace-adds-one | ReplaceResetsTheVersion
        version derived from length | sessions-write-adds-one | LengthAsVersion
        stale version after delete and re-create | sessions-version-never-repeats | VersionsRestart
        versions begin at 1 for an append at None | sessions-version-never-repeats checkpoints-version-never-repeats | FirstAtNoneIsOne
        replace not atomic | sessions-replace-shows-old-or-new sessions-cut-anywhere-is-old-or-new | ReplaceIsDeleteAndAppend ReplaceInTwoWrites
        replace keeps the tail | sessions-replace-keeps-the-first | ReplaceKeepsTheTail
        replace ignores the expected version | sessions-replace-refuses-another-version | ReplaceIgnoresVersion
        state lost | sessions-replace-keeps-the-rest | StateLostByReplace
        state merged | sessions-state-is-replaced-whole | MergesState
        state shared | sessions-do-not-share | SharesState
        append at the wrong version accepted | sessions-append-refuses-another-version | NoVersionCheck
        expected version 0 on an existing key accepted | sessions-expected-zero-means-absent | CreatesOverExisting
        delete leaves records | sessions-deleted-is-absent sessions-delete-leaves-nothing | DeleteLeavesTheRecords KeepsOldHeadBytes
        delete removes ids that begin alike | sessions-delete-removes-one-id checkpoints-delete-removes-one-id | DeletesByPrefix LargeDeletedByPrefix
        limit of zero read as no limit | sessions-windows-are-slices sessions-windows-cost-what-they-return | LimitZeroIsAll
        the last ones are the oldest | sessions-last-gives-the-newest | LastGivesTheOldest
        a replace leaves no trace | sessions-rewritten-names-the-last-replace | RewrittenIsForgotten
        scope lost with the next append | sessions-scope-is-set-once | ScopeLost
        scope changed by a later append | sessions-scope-is-set-once | ScopeCanChange
        updated goes back with the clock | sessions-updated-never-goes-back | UpdatedGoesBack
        times cut to seconds | sessions-times-come-from-the-clock | SecondsOnly
        times without their zone | sessions-times-come-from-the-clock sessions-at-is-kept-as-an-instant | TimesAreLocal
        conflict without its facts | sessions-append-refuses-another-version approvals-errors-carry-their-facts | ConflictWithoutFacts
        replace creates | sessions-replace-of-absent-conflicts | ReplaceCreates
        replace keeps more than there is | sessions-keep-beyond-the-end-conflicts | KeepBeyondTheEnd
        append in two writes | sessions-cut-anywhere-is-old-or-new sessions-append-costs-what-it-appends | AppendInTwoWrites
        append reads all | sessions-append-costs-what-it-appends | AppendReadsAll
        the newest are cut from all | sessions-windows-read-no-other-records | LoadsAllForTheNewest
        reading creates | sessions-reading-creates-nothing | ReadingCreates
        a replace that keeps all leaves no trace | sessions-rewritten-names-the-last-replace | KeepingAllIsAppending
        a replace drops equal records | sessions-replace-keeps-the-first | ReplacesDropEqualRecords
        a replace leaves the count of a listing as it was | sessions-listing-shows-the-head checkpoints-listing-shows-the-head | ListsTheCountOfAppends
        a replace of a long list keeps whole blocks | sessions-replace-keeps-the-first | ReplacesKeepWholeBlocks
        a replace or a delete removes a thousand records at most | sessions-replace-keeps-the-first sessions-delete-leaves-nothing | RemovesAThousand
        an equal write again is answered as done | sessions-equal-write-at-a-used-version-conflicts checkpoints-equal-write-at-a-used-version-conflicts | AnswersRepeatedWrites
        a window in a long list begins late | sessions-windows-of-a-long-transcript-are-slices | WindowsMissABorder
        a replace that changes nothing is not made | sessions-write-that-changes-nothing-adds-one | SkipsReplacesOfNothing
        an equal batch again is taken for a repetition | sessions-equal-records-are-all-kept checkpoints-equal-records-are-all-kept | TakesABatchForARepetition
        an index of 16 bits | sessions-no-cap-on-a-transcript | IndexOf16Bits
        """,
    ),
    *chapter(
        "checkpoints",
        """
        head and entries in two steps | checkpoints-head-and-entries-change-together | HeadThenEntries
        head of another run | checkpoints-every-head-field-comes-back | HeadOfAnotherRun
        status filter ignored | checkpoints-status-and-agent-filter-exactly | StatusIgnored
        agent filter ignored | checkpoints-status-and-agent-filter-exactly | AgentIgnored
        filter matched by prefix | sessions-scope-filters-exactly | GroupByPrefix
        "" read as none | checkpoints-status-and-agent-filter-exactly | EmptyGroupIsNone
        unknown head fields dropped | checkpoints-every-head-field-comes-back | ExtraFieldsDropped
        delete ignores the version | checkpoints-delete-refuses-another-version | DeleteIgnoresVersion
        delete resurrected by a late append | checkpoints-late-append-revives-nothing | LateAppendRevives
        list returns bodies | sessions-listing-moves-no-bodies checkpoints-listing-moves-no-bodies | ListsBodies
        list returns stale heads | checkpoints-listing-shows-the-head | ListsStaleHeads
        re-created journal keeps old entries | checkpoints-deleted-journal-keeps-nothing | KeepsOldHeadBytes
        keys s1 and s10 mixed | checkpoints-confusable-ids-stay-apart | KeysByPrefix
        replace keeps entries | checkpoints-replace-drops-every-entry | ReplaceKeepsTheTail ClosingKeepsEntries
        replace lowers the version | checkpoints-replace-adds-one | ReplaceLowersTheVersion
        lease loses its fraction of a second | checkpoints-every-head-field-comes-back | LeaseInSeconds
        a released owner stays | checkpoints-head-is-replaced-whole | OwnerStays
        attempts start again | checkpoints-every-head-field-comes-back | AttemptsRestart
        a base of zero read as none | checkpoints-every-head-field-comes-back | ZeroIsNone
        a heartbeat drops the entries | checkpoints-heartbeat-keeps-entries | HeartbeatClears
        replace keeps the head | checkpoints-head-is-replaced-whole | HeadKeptByReplace
        of a changed head the status alone is stored | checkpoints-heartbeat-keeps-entries | HeadsAreMerged
        a run and a session of one name are one | checkpoints-run-and-session-of-one-name-are-two | RunIsItsSession
        a replace drops unknown head fields | checkpoints-head-is-replaced-whole | ReplaceDropsUnknownFields
        a replace leaves the index by status | checkpoints-filters-follow-every-write | IndexesAppends
        a turn's agent becomes the scope of its session | parts-of-one-id-are-listed-apart | HeadsOfOneId
        """,
    ),
    *chapter(
        "approvals",
        """
        two deciders both win | approvals-one-of-many-tasks-decides | LaterDecisionOverwrites
        a later decision overwrites | approvals-decided-once approvals-one-of-many-tasks-decides | LaterDecisionOverwrites OtherAgainIsAnswered
        same decision again raises | approvals-same-decision-again-is-fine | SameAgainIsRefused
        unknown id creates one | approvals-unknown-is-not-created | DecidingCreates
        a copy gets another version | approvals-first-version-can-be-given | CopiesGetAnotherVersion
        create resets a decided one | approvals-create-again-gives-the-stored | CreateResetsDecided
        decision lost on re-open | approvals-decision-survives-reopening | DecisionsAreNotSaved
        edited arguments lost | approvals-decision-is-recorded-whole | EditsLost EmptyEditsLost
        edited arguments merged | approvals-decision-is-recorded-whole | EditsMerged
        False stored as missing | approvals-decision-is-recorded-whole | RejectionIsNoDecision
        note lost | approvals-decision-is-recorded-whole | NoteLost
        decider lost | approvals-decision-is-recorded-whole | DeciderLost
        time lost | approvals-decision-comes-at-the-clock | DecidedAtCreation
        list shows decided as pending | approvals-filters-are-exact | ListsDecidedAsPending
        list in wrong order | approvals-oldest-first | ListsTheNewestFirst
        expired at the wrong side of the instant | approvals-expired-is-rejected approvals-decidable-until-expiry | ExpiresATickLate ExpiresATickEarly
        prune removes an undecided one | prune-keeps-an-undecided-approval | PruneTakesUndecided
        decide after delete revives it | approvals-deleted-is-not-revived | DecideRevives
        other arguments under a known id accepted | approvals-create-with-other-arguments-conflicts | OtherArgumentsAccepted
        metadata lost | approvals-every-field-comes-back | MetadataLost
        a decision seen before what it says | approvals-decision-is-seen-whole | StatusBeforeDecision
        a decision in two writes | approvals-cut-anywhere-is-old-or-new | TwoStepDecision
        a cancelled one can be decided | approvals-cancelled-stays-cancelled | CancelIsForgotten
        a decision used up by reading | approvals-reading-consumes-nothing | DecisionIsConsumed
        a decision marks the turn before all are decided | decide-marks-the-turn-ready | DecideMarksAtTheFirst
        a decision marks another turn | decide-marks-no-other-turn | DecideMarksWhateverRuns
        the turn marked before the decision is stored | decide-stores-the-decision-first | DecideMarksFirst
        a decision without its mark told as failed | decide-stands-without-its-mark | DecideFailsWithItsMark
        a late decision leaves its turn waiting | decide-of-an-expired-one-marks-too | ExpiredMarksNothing
        """,
    ),
    *chapter(
        "prune",
        """
        newest removed | prune-removes-old-conversations-whole | PrunesTheNewest
        off by one tick | prune-keeps-what-is-as-old-as-the-limit | PrunesATickEarly PrunesATickLate
        naive and UTC mixed | prune-goes-by-instants | PrunesInLocalTime
        seconds and milliseconds mixed | prune-goes-by-instants | PrunesInMilliseconds PruneDropsFractions
        clock back removes everything | prune-under-a-clock-that-went-back-removes-nothing | PruneTakesTheFuture
        race with an append drops it | prune-drops-no-write-that-comes-in-between | PrunesWithoutAClaim
        another namespace touched | prune-stays-in-its-namespace | DeletesAllNamespaces SharesAllNamespaces
        dry run deletes | prune-dry-run-removes-nothing | DryRunDeletes
        returned ids wrong | prune-reports-exactly-what-is-gone | ReportsWhatIsKept ReportsNoApprovals
        leaves bodies | prune-removes-old-conversations-whole delete-session-leaves-nothing | PruneLeavesApprovals PruneLeavesTurnJournals
        leaves orphan runs | prune-removes-what-nothing-refers-to | PruneKeepsOrphans
        leaves index entries | prune-removes-old-conversations-whole | PruneLeavesApprovals
        separates a session from its run | prune-separates-no-session-from-its-run | PrunesBySessionAge
        second prune not a no-op | prune-a-second-time-does-nothing | PruneTouchesWhatItKeeps
        negative ages and plain numbers accepted | prune-refuses-bad-ages | PruneTakesNegativeAges
        stops at a page | prune-has-no-cap | PruneStopsAtAPage
        a decision that is not applied goes | prune-keeps-a-decision-that-is-not-applied | PruneTakesDecisions
        a live owner keeps nothing | prune-keeps-a-live-owner | PruneFencesOwnersOff
        """,
    ),
    *chapter(
        "listing",
        """
        before is inclusive | sessions-before-is-strict | BeforeIsInclusive
        the last write taken for the creation | sessions-order-by-last-write | RecentIsCreated
        ids sorted as a dictionary sorts words | sessions-order-by-id | IgnoresCase
        stops at twenty | sessions-no-cap-on-a-listing | ListingStopsAtTwenty
        heads left out | sessions-listing-shows-the-head | ForgetsTheHeadOfMany
        a cursor behind the last page | sessions-end-has-no-cursor | CursorEndsLate
        before ignored beside a filter | sessions-conditions-go-together checkpoints-conditions-go-together | BeforeAloneCounts
        what is filtered out counts for the limit | sessions-conditions-go-together checkpoints-conditions-go-together | LimitsBeforeItFilters
        before goes by the creation in one order | sessions-conditions-go-together checkpoints-conditions-go-together | BeforeGoesByTheOrder
        keys of one instant lost between recent pages | sessions-recent-pages-give-each-key-once checkpoints-recent-pages-give-each-key-once | TiesGoUpwards
        pages go round | sessions-pages-give-each-key-once sessions-pages-hold-under-writes | PagesGoRound
        a page of two moments | checkpoints-page-shows-one-instant | ReadsHeadsLater
        a page of a thousand is taken for the last | sessions-no-cap-on-a-page | CapsPages
        instants compared as texts | sessions-order-goes-by-microseconds checkpoints-order-goes-by-microseconds approvals-order-goes-by-microseconds | InstantsAsText
        pages in order recent go on from where a key stands by now | sessions-recent-pages-give-each-key-once checkpoints-recent-pages-give-each-key-once | RecentGoesOnFromNow
        """,
    ),
    *chapter(
        "deleting a conversation",
        """
        approvals stay | delete-session-leaves-nothing | DeleteLeavesApprovals
        the turn journal stays | delete-session-leaves-nothing | DeleteLeavesTheTurnJournal
        the lock goes first | delete-session-cut-short-keeps-its-journal-to-the-end | DeletesTheJournalFirst
        stops at a page | delete-session-has-no-cap | DeleteStopsAtAPage
        a running turn goes unasked | delete-session-respects-a-live-owner | DeletesRunningTurns
        answers that there was something | delete-session-tells-whether-there-was-anything | DeleteAnswersTrue
        what begins alike goes too | delete-session-leaves-nothing | DeletesWhatBeginsAlike
        """,
    ),
    *chapter(
        "crash and durability",
        """
        never committed | sessions-append-survives-kill | NeverSaves
        acknowledged before commit | sessions-append-survives-kill | SavesNowAndThen
        batch row by row | sessions-append-survives-kill | SavesRowByRow
        delete in two transactions | sessions-delete-survives-kill | DeleteInTwoSaves
        replace in two transactions | sessions-replace-survives-kill | ReplaceInTwoSaves
        set-up drops data on re-open | sessions-survives-reopening | SetUpDropsData
        left temp file breaks the next open | sessions-append-survives-kill | TempFileBlocks
        torn last line ends the log | sessions-append-survives-kill | SavesInPlace
        migration half done | newer-schema-is-refused | NewerSchemaIsRead
        recovery not repeatable | sessions-replaced-stays-replaced | ReplaceComesBack
        numbering restarts | sessions-survives-reopening | NumbersRestart
        a dead process's lock blocks for ever | sessions-append-survives-kill | LockOutlivesItsProcess
        close loses the tail | sessions-close-loses-no-tail | CloseLosesTheTail
        a delete not saved | sessions-deletion-survives-reopening | DeleteIsNotSaved
        scope and state not saved | sessions-whole-head-survives-reopening | HeadsAreNotSaved
        """,
    ),
    *chapter(
        "server kill",
        """
        acknowledged from a buffer of the server | sessions-append-survives-server-kill | AcknowledgesFromABuffer
        versions begin anew with the server | sessions-append-survives-server-kill | VersionsLiveInTheServer
        the old content is back | sessions-replace-survives-server-kill | ReplacedComesBack
        what was deleted is back | sessions-delete-survives-server-kill | DeletedComesBack
        the head of a turn is behind its entries | checkpoints-turn-survives-server-kill | HeadsAreSavedLater
        decisions are pending again | approvals-decision-survives-server-kill | DecisionsStayInMemory
        a write is sent again after the connection was lost | sessions-answers-hold-through-server-kill checkpoints-answers-hold-through-server-kill | SendsAgain
        told as not written though it was | sessions-answers-hold-through-server-kill | LostIsUnavailable
        batch torn by the kill | sessions-answers-hold-through-server-kill | TornByAKill
        a client never connects again | sessions-client-outlives-server-kill | StaysDisconnected
        a lost connection reads as absent | sessions-client-outlives-server-kill | AbsentWhenDisconnected
        """,
    ),
    *chapter(
        "power loss",
        """
        no fsync | sessions-append-survives-power-loss | NeverSyncs
        synced at close | sessions-append-survives-power-loss | SyncsAtClose
        a replace is not synced | sessions-replace-survives-power-loss | ReplaceIsNotSynced
        a delete is not synced | sessions-delete-survives-power-loss | DeleteIsNotSynced
        the middle of a turn is not synced | checkpoints-turn-survives-power-loss | HeartbeatsAreNotSynced
        a decision is not synced | approvals-decision-survives-power-loss | DecisionsAreNotSynced
        """,
    ),
    *chapter(
        "torn write",
        """
        torn line fuses with the next | sessions-append-survives-torn-write | AppendsBehindATornLine
        torn line ends the log | sessions-append-survives-torn-write | TornLineEndsTheLog
        torn line is refused as damage | sessions-append-survives-torn-write | TornLineIsDamage
        batch torn in one system call | sessions-append-survives-torn-write | RecordsAreLines
        a short write is taken for a whole one | sessions-append-survives-torn-write | TakesAShortWrite
        a replace overwrites in place | sessions-replace-survives-torn-write | ReplaceOverwrites
        a session deleted by half | sessions-delete-survives-torn-write | EmptiesBeforeItDeletes
        head of a turn without its entries | checkpoints-turn-survives-torn-write | HeadBeforeItsEntries
        turn closed by half | checkpoints-turn-survives-torn-write | ClosesBeforeItEmpties
        a decision torn | approvals-decision-survives-torn-write | DecisionInTwoLines
        session without its turn journal | atomic-write-survives-torn-write | BothInTwoLines
        """,
    ),
    *chapter(
        "concurrency",
        """
        lost update | sessions-no-update-is-lost | LastHandleWins
        torn batch seen | sessions-batches-are-whole-among-tasks | RowByRow
        compare-and-set not atomic between handles | sessions-one-of-many-handles-wins | OneAtATimePerHandle
        compare-and-set not atomic between tasks | sessions-one-of-many-tasks-wins | ChecksThenWrites
        compare-and-set of a replace, or of a delete, not atomic | sessions-one-of-every-kind-wins checkpoints-one-of-every-kind-wins | ReplaceChecksThenWrites DeleteChecksThenWrites
        compare-and-set not atomic between processes | sessions-one-of-many-processes-wins | LastWriterWins
        stale second handle | sessions-second-handle-is-never-stale | StaleHandle LaggingReads
        lock kept after a read | sessions-reading-creates-nothing | LockKeptAfterARead
        lock kept after a cancelled call | sessions-cancelled-call-holds-no-lock | CancelledKeepsLock
        a cancelled call goes on and answers | sessions-cancelled-call-raises checkpoints-cancelled-call-raises approvals-cancelled-call-raises | FinishesCancelledWrites AnswersCancelledReads AnswersCancelledListings
        lock kept between pages | sessions-listing-holds-no-lock | LockKeptBetweenPages
        paging skips or repeats under writes | sessions-pages-hold-under-writes | PagesByOffset
        busy error escapes | sessions-no-update-is-lost | BusyErrorEscapes
        hangs from a second loop | sessions-other-loop-is-refused | HangsInASecondLoop
        two parts written one after the other | atomic-write-is-all-or-none atomic-write-is-seen-whole | WritesBothOneByOne
        a cancelled delete is half done | sessions-cancelled-delete-is-whole-or-absent | CancelledDeleteIsHalf
        state and records of two moments | sessions-state-and-records-change-together | TornReads
        a reply goes to the next call | sessions-answers-stay-with-their-calls | RepliesShift
        a cancelled append moves the version alone | sessions-cancelled-append-is-whole-or-absent checkpoints-cancelled-append-is-whole-or-absent | CancelledMovesTheVersion
        a large batch that is cancelled is half done | sessions-cancelled-append-is-whole-or-absent checkpoints-cancelled-append-is-whole-or-absent | LargeBatchesLater
        a cancelled call interrupts another | sessions-storm-of-cancellations | CancelInterruptsAnother
        a write refused among others is half applied | atomic-write-conflicts-beside-other-writes | GroupsWithoutSavepoints
        a handle's heads stale | sessions-every-window-is-fresh | CachesHeads
        writes go to what another has replaced | sessions-handles-write-in-turn checkpoints-handles-write-in-turn | KeepsItsOpenFile
        no exclusion after a deletion | sessions-one-of-many-handles-wins-after-a-deletion checkpoints-one-of-many-handles-wins-after-a-deletion | LocksWhatWasDeleted
        answers go astray beside a cancelled call | sessions-answers-stay-beside-a-cancelled-call checkpoints-answers-stay-beside-a-cancelled-call approvals-answers-stay-beside-a-cancelled-call | AnswersWhoStillWaits
        records read after their head | sessions-replace-shows-one-moment | ReadsItemsLater
        numbers taken in blocks by each handle | sessions-handles-write-in-turn checkpoints-handles-write-in-turn | NumbersInBlocks
        a handle's listing stale | sessions-second-handle-is-never-stale checkpoints-second-handle-is-never-stale approvals-second-handle-is-never-stale | ListsItsOwnWrites
        a read joins an older one that is under way | sessions-every-window-is-fresh | JoinsReadsUnderWay
        a write of both forgets what listings and times go by | atomic-write-writes-both | TogetherKeepsTheTime TogetherKeepsTheGroup
        """,
    ),
    *chapter(
        "fidelity",
        """
        large integers beside the list become floats | sessions-numbers-beside-the-list-come-back checkpoints-numbers-beside-the-list-come-back | ReadsNumbersAsFloats
        big int to float | sessions-integers-come-back | big-ints-as-floats wraps-at-64-bits
        int, float and bool confused | sessions-booleans-are-not-numbers sessions-floats-come-back | booleans-as-numbers floats-as-ints ints-as-floats
        -0.0 | sessions-floats-come-back | loses-negative-zero
        null and missing | sessions-emptiness-comes-back | drops-nulls
        empty containers | sessions-emptiness-comes-back | empty-lists-as-null empty-objects-dropped
        NUL | sessions-text-comes-back | trims-nul cuts-at-nul
        lone surrogate | sessions-text-comes-back | replaces-surrogates
        astral | sessions-text-comes-back | loses-astral
        normalisation | sessions-text-comes-back | normalises normalises-keys
        trimming | sessions-text-comes-back | trims-blanks
        U+2028 | sessions-text-comes-back | replaces-line-separators
        key order | sessions-keys-come-back | sorts-keys
        cuts at 64 KiB | sessions-long-text-comes-back | cuts-at-64-kib
        cuts at 1 MiB | sessions-long-text-comes-back | cuts-at-1-mib
        cuts at 16 MiB | sessions-record-of-16-mib-comes-back | cuts-at-16-mib
        deep nesting | sessions-deep-nesting-comes-back | flattens-deep-ones
        unknown fields | sessions-keys-come-back | unknown-fields-dropped
        input aliased | sessions-snapshot-is-taken-at-the-call sessions-state-is-a-snapshot | LateSnapshot LateHead StateIsTheCallers
        output aliased | sessions-output-is-new-each-time | RemembersAnswers
        NaN, bytes, dates accepted | sessions-refuses-what-is-not-json | AcceptsNaN
        int keys accepted | sessions-refuses-records-that-are-no-objects | KeysAsText
        floats rounded | sessions-floats-come-back checkpoints-floats-come-back | rounds-floats
        booleans as numbers, in drawn values | sessions-any-json-comes-back checkpoints-any-json-comes-back | any-change-is-found
        keys in lower case | sessions-keys-come-back checkpoints-keys-come-back | lowers-keys
        a list of one unwrapped | sessions-emptiness-comes-back checkpoints-emptiness-comes-back | unwraps-lists
        items kept as text | sessions-items-come-back-byte-for-byte checkpoints-items-come-back-byte-for-byte approvals-items-come-back-byte-for-byte | ItemsAsText
        large items of two keys, parts or namespaces in one place | sessions-namespaces-write-their-own checkpoints-namespaces-write-their-own parts-of-one-id-are-listed-apart sessions-long-text-comes-back checkpoints-long-text-comes-back | LargeOfAllNamespaces LargeOfAllParts OneLargeOfAKey
        a large item stays as it was | sessions-long-text-comes-back checkpoints-long-text-comes-back | LargeStaysAsItWas
        a large state or head is not kept | sessions-state-is-replaced-whole checkpoints-head-is-replaced-whole | LargeHeadsAreLost
        blanks and line ends around items lost | sessions-items-come-back-byte-for-byte checkpoints-items-come-back-byte-for-byte approvals-items-come-back-byte-for-byte | StripsItems
        items rewritten as JSON | sessions-items-come-back-byte-for-byte checkpoints-items-come-back-byte-for-byte approvals-items-come-back-byte-for-byte | RewritesJson
        heads kept as text | sessions-heads-come-back-byte-for-byte checkpoints-heads-come-back-byte-for-byte approvals-heads-come-back-byte-for-byte | HeadsAsText ListsHeadsAsText
        an empty head read as none given | sessions-heads-come-back-byte-for-byte checkpoints-heads-come-back-byte-for-byte approvals-heads-come-back-byte-for-byte | EmptyHeadsAreNone
        """,
    ),
    *chapter(
        "ids, errors, lifecycle",
        """
        ids that are none: a/b, a:b, a%, .. | sessions-bad-ids-are-refused | TakesAnyId
        a_b taken for another | sessions-confusable-ids-stay-apart | UnderscoreIsAnyCharacter
        case | sessions-confusable-ids-stay-apart sessions-listing-gives-exact-ids | FoldsCase ListsLowerIds
        trailing blank | sessions-bad-ids-are-refused | TakesAnyId
        128 and 129 characters | sessions-confusable-ids-stay-apart sessions-id-of-128-characters-works | CutsIds
        prefix of another | sessions-delete-removes-one-id | DeletesByPrefix
        namespace leak | sessions-namespaces-share-no-key sessions-namespaces-list-their-own | SharesAllNamespaces ListsNamespacesByPrefix WritesNamespaceByPrefix
        namespace leak by a filter | sessions-namespaces-list-their-own checkpoints-namespaces-list-their-own approvals-namespaces-list-their-own | FiltersAllNamespaces
        wrong class of error | sessions-append-refuses-another-version | ConflictAsUnknown
        swallowed error | sessions-append-refuses-another-version | SwallowsErrors
        driver's error escapes | sessions-absent-is-none sessions-failed-read-is-unavailable | ForeignErrorEscapes LosesTheCause
        half effect after a failed call | sessions-refused-batch-leaves-nothing | FailedBatchLeavesHalf
        unavailable raised though it was written | sessions-errors-tell-the-truth | UnavailableThoughWritten UnknownIsUnavailable
        answered though it was not written | sessions-errors-tell-the-truth | WrittenThoughUnavailable
        empty returned on failure | sessions-failed-read-is-unavailable sessions-damage-is-neither-absent-nor-empty | AbsentWhileDown NoneListedWhileDown DamageIsEmpty
        damage left out of listings | sessions-damage-is-neither-absent-nor-empty checkpoints-damage-is-neither-absent-nor-empty approvals-damage-is-neither-absent-nor-empty | DamageIsNotListed
        use after close works | sessions-closed-store-refuses | CloseDoesNothing
        second close raises | sessions-close-twice-is-fine | SecondCloseRaises
        descriptors leak | sessions-opening-and-closing-leaks-nothing | LeaksDescriptors
        tasks leak | sessions-opening-and-closing-leaks-nothing | LeaksTasks
        threads leak | sessions-opening-and-closing-leaks-nothing | LeaksThreads
        declared capability raises | sessions-declared-operation-works | DeclaresWhatItCannot
        undeclared one works | sessions-undeclared-operation-refuses | UndeclaredWorks UndeclaredDoesNothing
        leading zeros lost | sessions-confusable-ids-stay-apart | LeadingZerosLost
        one failure ends all service | sessions-works-again-after-an-outage | StaysDown
        closing one handle closes all | sessions-closing-one-handle-leaves-the-other | ClosesAllHandles
        capitals at the end of a long id | sessions-confusable-ids-stay-apart approvals-listing-gives-exact-ids | ShortCapitals
        a refused replace or delete keeps the lock | sessions-store-works-after-conflicts checkpoints-store-works-after-conflicts | ConflictKeepsTheLock
        calls under way are cancelled by close | sessions-close-answers-calls-under-way | CloseCancelsCalls
        """,
    ),
    *chapter(
        "protocol",
        """
        version or run id repeats after delete and re-create | protocol-run-ids-never-repeat | RunIdsRepeat
        transcript read before the journal is opened | protocol-turn-stands-behind-its-transcript | SavesBehindOtherTurns
        commit retried without proof | protocol-dropped-turn-saves-nothing | ConflictsAreOverruled
        a title lost at commit | protocol-title-survives-a-commit | TitleLostAtCommit
        the gate's approval answers the in-doubt question | protocol-approval-answers-its-own-question | OneApprovalForACall
        a decision between the look and awaiting-approval is missed | protocol-decision-is-seen-by-one-of-the-two | DecideMarksNothing
        prune takes a decision that is not applied yet | protocol-prune-keeps-the-approvals-of-a-turn | PrunesUnappliedDecisions
        prune takes a finished uncommitted turn | protocol-prune-takes-no-turn-that-goes-on | PrunesWhatIsNotSaved
        a paused clear, delete or discard harms a later turn | protocol-sleeping-claim-harms-no-later-turn | DeletesLaterTurns
        delete with an active runner leaves anything | protocol-delete-fences-the-runner | DeletedRunnerGoesOn
        an opening of unknown outcome runs twice | protocol-unknown-opening-runs-once | OpensTwice
        a claim of this process blocks itself | protocol-failed-claim-blocks-nobody | OwnersOfOtherHosts
        a heartbeat conflicts with its own runner | protocol-heartbeat-conflicts-with-nobody | HeartbeatSkipsAVersion
        """,
    ),
    *chapter(
        "runtime on a store",
        """
        recorded tool re-run | turn-comes-out-whole-wherever-it-is-cut | LosesToolEntries
        response asked again | turn-comes-out-whole-wherever-it-is-cut | LosesModelEntries
        turn committed twice | turn-decisions-are-applied-as-made | CommitsTwice
        turn committed never | turn-decisions-are-applied-as-made | CommitsNever
        turn without its last result | turn-decisions-are-applied-as-made | LastResultLost
        orphan call after a crash | turn-comes-out-whole-wherever-it-is-cut | LosesToolEntries
        approval applied twice | protocol-decision-is-applied-once turn-has-one-runner | TurnJournalIgnoresVersions
        approval applied to another call | turn-decisions-are-applied-as-made | DecisionsOfNeighbours
        decided turn not continued after restart | turn-decided-elsewhere-goes-on-here | ForgetsDecisionsElsewhere
        two resumers both run | turn-has-one-runner | TurnJournalIgnoresVersions
        stale owner still writes | turn-of-a-stale-owner-writes-nothing | StaleOwnersWrite
        queued input lost | turn-queued-input-is-not-lost | LosesQueuedInputs
        that a call was started is lost | protocol-approval-answers-its-own-question | LosesStartedEntries
        edited arguments not read | turn-decisions-are-applied-as-made | EditsOfNobody
        """,
    ),
)
