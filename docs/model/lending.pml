/*
 * The lending protocol of package coordinator, for the model checker spin.
 * README.md says what is modelled, what is left out, how each part maps to the
 * Go code, and how to run it. In short: one lender (a worker) with two units,
 * two borrowers (masters), a supervisor that ends processes and confirms
 * fences, and links that lose, repeat and reorder.
 *
 * Sizes (-DNAME=n):
 *   GRANTS    grants in a run; bounds epochs and versions
 *   CRASHES   processes that crash or are replaced, the lender included
 *   SLOTS     messages that a link holds in each direction, 1 or 2
 *   IDS       numbers of Borrow that a borrower's process uses
 *   BORROWERS 1 or 2
 *
 * What is left out on purpose, to see spin find the corruption:
 *   NOFENCE         units taken without consent are used again at once
 *   NOEPOCH         a unit coming back is not compared by its epoch
 *   EARLYRELEASE    a lost unit is Released while a store to it still runs
 *   FORGETADOPTED   a unit that a restarted lender fences before its borrower
 *                   was heard counts as the borrower's present process's
 *   CONFIRMEARLIER  the confirmation of a fence confirms earlier ones too, and
 *                   the supervisor handles fences in any order; harmless with
 *                   INORDER, where it handles them one after the other
 *   DEAFSUPERVISOR  nobody confirms a fence (breaks progress, not safety)
 *
 * LIVE adds the progress property, and takes the assertions out.
 */
#ifndef GRANTS
#define GRANTS 2
#endif
#ifndef CRASHES
#define CRASHES 1
#endif
#ifndef SLOTS
#define SLOTS 2
#endif
#ifndef IDS
#define IDS 2
#endif
#ifndef BORROWERS
#define BORROWERS 2
#endif
#define FENCES 10 /* fences that one process of the lender reports, at most */

#ifdef LIVE
#define CLAIM(x) skip
#else
#define CLAIM(x) assert(x)
#endif

/* TELL makes a replayed trail readable. */
#ifdef TELL
#define SAY(text, x, y) printf(text, x, y);
#else
#define SAY(text, x, y)
#endif

#define AT(b, u) (2 * (b) + (u))
#define NOBODY 2

/* ---- the unit table: outlives every process ---- */

#define LOCAL  0
#define LENT   1 /* RECLAIMING is LENT here: the mark is only a hint */
#define FENCED 2
byte st[2];
byte own[2] = NOBODY;
byte ep[2] = 1;

/* What the table lets borrower b do: elastic.UnitTable.MayUse. */
#define mayUse(b, u, e) (st[u] == LENT && own[u] == (b) && ep[u] == (e))
#define holds(b) ((st[0] == LENT && own[0] == (b)) + (st[1] == LENT && own[1] == (b)))

/* ---- the lender's process ---- */

byte ver[2] = 1;      /* version of a borrower's units */
byte owed[2];         /* units asked back that have not come */
int  ans[2 * IDS];    /* the Grant that answered a Borrow, by borrower and number */
bit  lentAdopted[2];  /* LENT since an earlier process, borrower not heard yet */
bit  fencedAdopted[2];/* taken from such a lease, or by an earlier process */
bit  past[2];         /* FENCED: only earlier processes of the borrower had it */
byte fid[2];          /* FENCED: the fence that it was reported under */
byte fences;          /* last fence */
byte grants;          /* made so far, by all processes */

/* Fences that the supervisor has not handled, by number: 0 none, else
   4 * borrower + kind. */
#define SHUT   1 /* only earlier processes of the borrower may write */
#define OPEN   2 /* the present one too */
#define GONE   3 /* so it was; the process has been replaced since */
byte rec[FENCES + 1];

/* ---- the borrowers' present processes ---- */

byte bver[2];         /* version of the replica; 0: none */
bit  asked[2];        /* a Sync is not answered */
byte wanted[2];       /* number of the Borrow that is not answered; 0: none */
byte lastId[2];
#define INUSE 1
#define LOST  2
byte hs[4];           /* by AT(b, u): what the borrower has */
byte he[4];           /* and under which epoch */
byte ge[4];           /* epoch of a unit given up and not acknowledged; 0: none */
byte op[2];           /* unit + 1 of the store that runs; 0: none */
byte oe[2];           /* and its epoch: it was checked before, not during */

/* ---- replaced processes that were not ended: they may go on writing ---- */

byte zh[4];           /* epochs of the units that they have */
byte zop[2];
byte zoe[2];

/* ---- links ---- */

/* Who the lender, and the borrower, last spoke to. */
#define NONE    0
#define PRESENT 1
#define EARLIER 2
byte lk[2];           /* of borrower b's processes, the lender knows this one */
byte bk[2];           /* of the lender's processes, borrower b knows this one */
#define linked(b) (lk[b] == PRESENT && bk[b] == PRESENT)

int toL[2 * SLOTS];   /* messages under way; each may be delivered any number */
int toB[2 * SLOTS];   /* of times, in any order, or never */

byte crashes;

/* Messages. Bits 0-2: type; the rest depends on it. */
#define BORROW   1    /* a: number */
#define RETURN   2    /* a: unit, b: epoch; Return and Released of a borrower */
#define ASK      3    /* a: 1 when the replica is empty of a view (Version 0);
                         b, c: epochs of the units that the borrower knows */
#define GRANT    1    /* a: number * 2 + unit, b: epoch, d: version */
#define RELEASED 2    /* a: unit * 2 + taken, b: epoch, d: version */
#define SYNC     3    /* a: answer * 16 + kind of unit 0 * 4 + kind of unit 1;
                         b, c: epochs of the units; d: version */
#define msg(t, a, b, c, d) ((t) | ((a) << 3) | ((b) << 8) | ((c) << 12) | ((d) << 16))
#define mType(m) ((m) & 7)
#define mA(m) (((m) >> 3) & 31)
#define mB(m) (((m) >> 8) & 15)
#define mC(m) (((m) >> 12) & 15)
#define mV(m) (((m) >> 16) & 15)
#define KHELD  1      /* kinds of units in a SYNC */
#define KTAKEN 2

/* put adds a message to a link. A full one loses some message, any. The two
   slots are a set, kept in order, so that equal contents are equal states.
   (Macros: an inline cannot take an array.) */
#if SLOTS == 1
#define put(bag, b, m) if :: bag[b] = m :: bag[b] != 0 -> skip fi
#else
#define full(bag, b) (bag[AT(b, 0)] != 0)
#define put(bag, b, m) if \
	:: bag[AT(b, 0)] == m || bag[AT(b, 1)] == m -> skip \
	:: else -> \
		if \
		:: bag[AT(b, 1)] == 0 -> bag[AT(b, 1)] = m \
		:: bag[AT(b, 1)] != 0 -> bag[AT(b, 0)] = m \
		:: full(bag, b) -> bag[AT(b, 1)] = m \
		:: full(bag, b) -> skip \
		fi; \
		if \
		:: bag[AT(b, 0)] > bag[AT(b, 1)] -> \
			swap = bag[AT(b, 0)]; bag[AT(b, 0)] = bag[AT(b, 1)]; bag[AT(b, 1)] = swap; swap = 0 \
		:: else \
		fi \
	fi
#endif

int out;              /* the message that is being sent */

inline toLender(b) {
	if
	:: linked(b) -> put(toL, b, out)
	:: else
	fi;
	out = 0
}

inline toBorrower(b) {
	if
	:: linked(b) -> put(toB, b, out)
	:: else
	fi;
	out = 0
}

/* pick takes any message under way; it stays, and may come again. */
#if SLOTS == 1
#define mail(bag, b) (bag[b] != 0)
#define pick(bag, b, m) m = bag[b]
#define drop(bag, b) bag[b] = 0
#else
#define mail(bag, b) (bag[AT(b, 1)] != 0)
#define pick(bag, b, m) if :: full(bag, b) -> m = bag[AT(b, 0)] :: m = bag[AT(b, 1)] fi
#define drop(bag, b) bag[AT(b, 0)] = 0; bag[AT(b, 1)] = 0
#endif

/* ---- properties that hold at every moment ---- */

/* A store ends, its last byte is written: the unit is its writer's, or it was
   taken from that writer and nobody else uses it. */
#define mayWrite(b, u, e) (mayUse(b, u, e) || (st[u] == FENCED && own[u] == (b) && ep[u] == (e) + 1))

#define lentTo(b, u) (st[u] == LENT && own[u] == (b))
/* A borrower whose replica is current knows each unit that it has, so that
   none is lost between the two, and uses none that it does not have. */
#define sameUnit(b, u) ( \
	(!lentTo(b, u) || (hs[AT(b, u)] && he[AT(b, u)] == ep[u]) || ge[AT(b, u)] == ep[u]) && \
	(hs[AT(b, u)] != INUSE || (lentTo(b, u) && he[AT(b, u)] == ep[u])))
#define replica(b) (!linked(b) || (bver[b] <= ver[b] && \
	(bver[b] != ver[b] || (sameUnit(b, 0) && sameUnit(b, 1)))))
#define oneOwner(u) ( \
	(st[u] == LOCAL && own[u] == NOBODY && !fid[u] && !past[u] && !fencedAdopted[u] && !lentAdopted[u]) || \
	(st[u] == LENT && own[u] < NOBODY && !fid[u] && !past[u] && !fencedAdopted[u]) || \
	(st[u] == FENCED && own[u] < NOBODY && fid[u] && !lentAdopted[u]))
#define check() CLAIM(replica(0) && replica(1)); CLAIM(oneOwner(0) && oneOwner(1)); \
	CLAIM(owed[0] <= holds(0) && owed[1] <= holds(1))

/* ---- the lender's book ---- */

/* goHome: elastic.Units.home. A replaced process's epoch is of no use then. */
inline goHome(u) {
	zh[AT(0, u)] = 0; zh[AT(1, u)] = 0;
	SAY("lender: unit %d is home, at epoch %d\n", u, ep[u] + 1)
	st[u] = LOCAL; own[u] = NOBODY; ep[u]++;
	fid[u] = 0; past[u] = 0; fencedAdopted[u] = 0; lentAdopted[u] = 0
}

/* cameHome: of what a borrower owes, n came; it owes no more than it has. */
inline cameHome(b, n) {
	if
	:: owed[b] > n -> owed[b] = owed[b] - n
	:: else -> owed[b] = 0
	fi;
	if
	:: owed[b] > holds(b) -> owed[b] = holds(b)
	:: else
	fi
}

/* take: one unit, without consent. The caller counts the version. */
inline take(u) {
	zh[AT(0, u)] = 0; zh[AT(1, u)] = 0;
	SAY("lender: unit %d is fenced, at epoch %d\n", u, ep[u] + 1)
	st[u] = FENCED; ep[u]++;
#ifdef FORGETADOPTED
	fencedAdopted[u] = 0;
#else
	fencedAdopted[u] = lentAdopted[u];
#endif
	lentAdopted[u] = 0
}

/* report: a new fence of those units of b that are in the set. */
inline report(b, in0, in1, how) {
	if
	:: in0 || in1 ->
		assert(fences < FENCES);
		fences++;
		SAY("lender: reports fence %d, kind %d\n", fences, how)
		rec[fences] = 4 * (b) + how;
		if :: in0 -> fid[0] = fences :: else fi;
		if :: in1 -> fid[1] = fences :: else fi
	:: else
	fi
}

#define fencedOf(b, u) (st[u] == FENCED && own[u] == (b))
#define kind(b, u) (lentTo(b, u) -> KHELD : (fencedOf(b, u) && !past[u] -> KTAKEN : 0))
#define kindEpoch(b, u) (lentTo(b, u) -> ep[u] : (fencedOf(b, u) && !past[u] -> ep[u] - 1 : 0))

inline sendSync(b, answer) {
	out = msg(SYNC, answer * 16 + kind(b, 0) * 4 + kind(b, 1), kindEpoch(b, 0), kindEpoch(b, 1), ver[b]); toBorrower(b)
}

/* fence: Lender.fence; units of b are taken, it is told, the supervisor too. */
inline fence(b, in0, in1, count) {
	ver[b]++;
	if :: in0 -> take(0) :: else fi;
	if :: in1 -> take(1) :: else fi;
	cameHome(b, count);
	report(b, in0, in1, OPEN);
	sendSync(b, 0);
#ifdef NOFENCE
	if :: in0 -> goHome(0) :: else fi;
	if :: in1 -> goHome(1) :: else fi;
	rec[fences] = 0; fences--
#endif
}

/* peerReset: Lender.PeerReset; what the borrower's old process held is
   fenced. */
inline peerReset(b) {
	for (i : 0 .. IDS - 1) { ans[b * IDS + i] = 0 }
	i = 0;
	if
	:: holds(b) > 0 ->
		ver[b]++;
		if :: lentTo(b, 0) -> take(0) :: else fi;
		if :: lentTo(b, 1) -> take(1) :: else fi
	:: else
	fi;
	owed[b] = 0;
	if :: fencedOf(b, 0) -> past[0] = 1 :: else fi;
	if :: fencedOf(b, 1) -> past[1] = 1 :: else fi;
	report(b, fencedOf(b, 0), fencedOf(b, 1), SHUT)
}

/* claimed: Lender.claimed; k0 and k1 are the epochs that the borrower knows. */
inline claimedUnit(b, u, known) {
	if
	:: lentTo(b, u) && lentAdopted[u] && known != ep[u] ->
		take(u); fencedAdopted[u] = 1; n++
	:: else
	fi;
	if
	:: lentTo(b, u) -> lentAdopted[u] = 0
	:: fencedOf(b, u) && fencedAdopted[u] && known != ep[u] - 1 -> past[u] = 1
	:: else
	fi
}

inline claimed(b, k0, k1) {
	n = 0;
	claimedUnit(b, 0, k0);
	claimedUnit(b, 1, k1);
	if
	:: n > 0 -> ver[b]++; cameHome(b, n)
	:: else
	fi;
	n = 0;
	report(b, fencedOf(b, 0) && fencedAdopted[0] && past[0], fencedOf(b, 1) && fencedAdopted[1] && past[1], SHUT);
	if :: fencedOf(b, 0) -> fencedAdopted[0] = 0 :: else fi;
	if :: fencedOf(b, 1) -> fencedAdopted[1] = 0 :: else fi
}

/* takeBack: Lender.takeBack of one unit, and the acknowledgement. */
inline takeBack(b, u, e) {
	if
#ifdef NOEPOCH
	:: fencedOf(b, u) && !past[u] -> goHome(u)
	:: lentTo(b, u) ->
#else
	:: fencedOf(b, u) && !past[u] && ep[u] - 1 == e -> goHome(u)
	:: lentTo(b, u) && ep[u] == e ->
#endif
		goHome(u);
		ver[b]++;
		cameHome(b, 1);
		n = 1
	:: else
	fi;
	out = msg(RELEASED, u * 2 + n, e, 0, ver[b]); toBorrower(b);
	n = 0
}

/* borrow: Lender.borrow; one unit at a time. What is asked back from one
   borrower may be for another, or for the worker itself: so a unit that is at
   home may be lent whatever is owed, and any wish may be denied. Who gets what
   (shares, turns) is a policy, of which nothing here depends. */
inline borrow(b, id) {
	if
	:: ans[b * IDS + id - 1] != 0 -> out = ans[b * IDS + id - 1]; toBorrower(b)
	:: else ->
		if
		:: grants < GRANTS && (st[0] == LOCAL || st[1] == LOCAL) ->
			if
			:: st[0] == LOCAL -> n = 0
			:: else -> n = 1
			fi;
			grants++;
			st[n] = LENT; own[n] = b; ep[n]++;
			SAY("lender: unit %d is lent to borrower %d\n", n, b)
			ver[b]++;
			ans[b * IDS + id - 1] = msg(GRANT, id * 2 + n, ep[n], 0, ver[b]);
			n = 0;
			out = ans[b * IDS + id - 1]; toBorrower(b)
		:: else /* Deny; like a lost answer */
		fi
	fi
}

inline receive(b) {
	if
	:: mType(m) == BORROW -> borrow(b, mA(m))
	:: mType(m) == RETURN -> takeBack(b, mA(m), mB(m))
	:: mType(m) == ASK ->
		if
		:: mA(m) == 1 -> claimed(b, mB(m), mC(m))
		:: else
		fi;
		sendSync(b, 1)
	fi
}

#define usesUnder(b, u) (hs[AT(b, u)] == INUSE && he[AT(b, u)] == ep[u])

proctype Lender() {
	int m; byte i, n; int swap;
	do
	/* a message of a borrower */
	:: atomic { mail(toL, 0) -> pick(toL, 0, m); receive(0); m = 0; check() }
	:: atomic { mail(toL, 1) -> pick(toL, 1, m); receive(1); m = 0; check() }
	/* Need, and favour: the worker asks units back, for itself or for the other
	   borrower; how many, and of whom, is anybody's choice */
	:: atomic { owed[0] < holds(0) -> SAY("lender: borrower %d owes %d units\n", 0, owed[0] + 1) owed[0]++ }
	:: atomic { owed[1] < holds(1) -> SAY("lender: borrower %d owes %d units\n", 1, owed[1] + 1) owed[1]++ }
	/* expire: a lease ends; for its borrower, if it lives, it has ended before */
	:: atomic { lentTo(0, 0) && !usesUnder(0, 0) -> fence(0, true, false, 1); check() }
	:: atomic { lentTo(0, 1) && !usesUnder(0, 1) -> fence(0, false, true, 1); check() }
	:: atomic { lentTo(1, 0) && !usesUnder(1, 0) -> fence(1, true, false, 1); check() }
	:: atomic { lentTo(1, 1) && !usesUnder(1, 1) -> fence(1, false, true, 1); check() }
	od
}

/* Deadline: Lender.overdue. A process of its own, so that spin's fairness says
   that the time comes. What a borrower owes is taken, the lowest unit first. */
proctype Deadline(byte b) {
	byte n; int swap; bool a0, a1;
	do
	:: atomic { owed[b] > 0 ->
		n = owed[b];
		a0 = lentTo(b, 0);
		a1 = lentTo(b, 1) && n > a0;
		owed[b] = 0;
		fence(b, a0, a1, 0);
		a0 = 0; a1 = 0; n = 0;
		check() }
	od
}

/* ---- a borrower ---- */

#define knows(b, u) (hs[AT(b, u)] -> he[AT(b, u)] : ge[AT(b, u)])
#define has(b, u, e) ((hs[AT(b, u)] && he[AT(b, u)] == (e)) || ge[AT(b, u)] == (e))

inline ask(b) {
	asked[b] = 1;
	if
	:: bver[b] == 0 -> out = msg(ASK, 1, knows(b, 0), knows(b, 1), 0); toLender(b)
	:: else -> out = msg(ASK, 0, 0, 0, 0); toLender(b)
	fi
}

inline gap(b) {
	if
	:: !asked[b] -> ask(b)
	:: else
	fi
}

inline use(b, u, e) {
	CLAIM(hs[AT(b, u)] == 0);
	SAY("borrower %d: may use unit %d\n", b, u)
	hs[AT(b, u)] = INUSE; he[AT(b, u)] = e
}

inline give(b, u, e) {
	SAY("borrower %d: returns unit %d\n", b, u)
	ge[AT(b, u)] = e;
	out = msg(RETURN, u, e, 0, 0); toLender(b)
}

/* granted: Borrower.granted */
inline granted(b) {
	if
	:: bver[b] != 0 && mV(m) <= bver[b] ->
		if
		:: wanted[b] == mA(m) / 2 -> wanted[b] = 0
		:: else
		fi
	:: else ->
		if
		:: wanted[b] != mA(m) / 2 || bver[b] == 0 || mV(m) > bver[b] + 1 -> gap(b)
		:: else ->
			bver[b] = mV(m);
			use(b, mA(m) % 2, mB(m));
			wanted[b] = 0
		fi
	fi
}

/* acknowledged: Borrower.released */
inline acknowledged(b) {
	n = mA(m) / 2;
	if
	:: ge[AT(b, n)] != mB(m) ->
		if
		:: mV(m) > bver[b] -> gap(b)
		:: else
		fi
	:: else ->
		if
		:: bver[b] != 0 && mV(m) <= bver[b] -> ge[AT(b, n)] = 0
		:: else ->
			if
			:: mA(m) % 2 == 0 || bver[b] == 0 || mV(m) > bver[b] + 1 -> gap(b)
			:: else -> bver[b] = mV(m); ge[AT(b, n)] = 0
			fi
		fi
	fi;
	n = 0
}

#define mKind(u) (((mA(m) % 16) >> (2 - 2 * (u))) & 3)
#define mEpoch(u) ((m >> (8 + 4 * (u))) & 15)
#define fresh(b, u) (mKind(u) == KHELD && !has(b, u, mEpoch(u)))

inline syncUnit(b, u) {
	if
	:: hs[AT(b, u)] == INUSE && !(mKind(u) == KHELD && mEpoch(u) == he[AT(b, u)]) -> hs[AT(b, u)] = LOST
	:: else
	fi;
	/* disown: taken before this process heard that it had it */
	if
	:: mKind(u) == KTAKEN && !has(b, u, mEpoch(u)) -> give(b, u, mEpoch(u))
	:: else
	fi
}

/* synced: Borrower.sync */
inline synced(b) {
	n = asked[b] && (mA(m) >= 16);
	if
	:: mV(m) < bver[b] || (bver[b] == 0 && !n) -> skip
	:: else ->
		if
		:: !n && (fresh(b, 0) || fresh(b, 1)) -> gap(b)
		:: else ->
			bver[b] = mV(m);
			syncUnit(b, 0);
			syncUnit(b, 1);
			if
			:: n ->
				asked[b] = 0;
				if :: fresh(b, 0) -> use(b, 0, mB(m)) :: else fi;
				if :: fresh(b, 1) -> use(b, 1, mC(m)) :: else fi
			:: else
			fi
		fi
	fi;
	n = 0
}

/* A store ends here, and here only: bytes reach the unit. */
inline endStore(b, unit1, e) {
	CLAIM(mayWrite(b, unit1 - 1, e));
	unit1 = 0; e = 0
}

/* letGo: the borrower's owner Releases a unit once no store to it runs. */
inline letGo(b, u) {
	n = he[AT(b, u)];
	hs[AT(b, u)] = 0; he[AT(b, u)] = 0;
	give(b, u, n);
	n = 0
}

#ifdef EARLYRELEASE
#define quiet(b, u) (hs[AT(b, u)] == LOST || op[b] != (u) + 1)
#else
#define quiet(b, u) (op[b] != (u) + 1)
#endif

proctype Borrower(byte b) {
	int m; byte n; int swap;
	do
	/* a message of the lender */
	:: atomic { linked(b) && mail(toB, b) -> pick(toB, b, m);
		if
		:: mType(m) == GRANT -> granted(b)
		:: mType(m) == RELEASED -> acknowledged(b)
		:: mType(m) == SYNC -> synced(b)
		fi;
		m = 0; check() }
	/* Want; again, and under a new number when the link came back */
	:: atomic { linked(b) && lastId[b] < IDS -> lastId[b]++; wanted[b] = lastId[b];
		out = msg(BORROW, wanted[b], 0, 0, 0); toLender(b) }
	:: atomic { linked(b) && wanted[b] != 0 -> out = msg(BORROW, wanted[b], 0, 0, 0); toLender(b) }
	/* questions and gifts are repeated */
	:: atomic { linked(b) && asked[b] -> ask(b) }
	:: atomic { linked(b) && ge[AT(b, 0)] != 0 -> out = msg(RETURN, 0, ge[AT(b, 0)], 0, 0); toLender(b) }
	:: atomic { linked(b) && ge[AT(b, 1)] != 0 -> out = msg(RETURN, 1, ge[AT(b, 1)], 0, 0); toLender(b) }
	/* a lease ends in the borrower's view, which is never the later one */
	:: atomic { hs[AT(b, 0)] == INUSE -> SAY("borrower %d: its lease of unit %d ends\n", b, 0) hs[AT(b, 0)] = LOST }
	:: atomic { hs[AT(b, 1)] == INUSE -> SAY("borrower %d: its lease of unit %d ends\n", b, 1) hs[AT(b, 1)] = LOST }
	/* Release, asked to or not */
	:: atomic { hs[AT(b, 0)] != 0 && quiet(b, 0) -> letGo(b, 0); check() }
	:: atomic { hs[AT(b, 1)] != 0 && quiet(b, 1) -> letGo(b, 1); check() }
	/* a store: the guard looks at the table, then bytes move for any time */
	:: atomic { op[b] == 0 && hs[AT(b, 0)] != 0 && mayUse(b, 0, he[AT(b, 0)]) ->
		SAY("borrower %d: starts a store to unit %d\n", b, 0) op[b] = 1; oe[b] = he[AT(b, 0)] }
	:: atomic { op[b] == 0 && hs[AT(b, 1)] != 0 && mayUse(b, 1, he[AT(b, 1)]) ->
		SAY("borrower %d: starts a store to unit %d\n", b, 1) op[b] = 2; oe[b] = he[AT(b, 1)] }
	:: atomic { op[b] != 0 -> SAY("borrower %d: writes to unit %d\n", b, op[b] - 1) endStore(b, op[b], oe[b]) }
	/* the same of a replaced process that still runs */
	:: atomic { zop[b] == 0 && zh[AT(b, 0)] != 0 && mayUse(b, 0, zh[AT(b, 0)]) ->
		SAY("borrower %d, replaced: starts a store to unit %d\n", b, 0) zop[b] = 1; zoe[b] = zh[AT(b, 0)] }
	:: atomic { zop[b] == 0 && zh[AT(b, 1)] != 0 && mayUse(b, 1, zh[AT(b, 1)]) ->
		SAY("borrower %d, replaced: starts a store to unit %d\n", b, 1) zop[b] = 2; zoe[b] = zh[AT(b, 1)] }
	:: atomic { zop[b] != 0 -> SAY("borrower %d, replaced: writes to unit %d\n", b, zop[b] - 1) endStore(b, zop[b], zoe[b]) }
	od
}

/* ---- processes that end, and links that open ---- */

/* replaced: a new process, which knows nothing, takes a borrower's place. */
inline replaced(b) {
	bver[b] = 0; asked[b] = 0; wanted[b] = 0; lastId[b] = 0;
	for (i : 2 * b .. 2 * b + 1) { hs[i] = 0; he[i] = 0; ge[i] = 0 }
	for (i : 1 .. FENCES) {
		if
		:: rec[i] == 4 * b + OPEN -> rec[i] = 4 * b + GONE
		:: else
		fi
	}
	i = 0;
	op[b] = 0; oe[b] = 0;
	if :: lk[b] == PRESENT -> lk[b] = EARLIER :: else fi;
	bk[b] = NONE;
	drop(toB, b)
}

inline zombiesEnd(b) {
	zop[b] = 0; zoe[b] = 0; zh[AT(b, 0)] = 0; zh[AT(b, 1)] = 0
}

/* connect: the session tells each end when the other is another process. */
inline connect(b) {
	SAY("world: borrower %d connects, it was %d to the lender\n", b, lk[b])
	drop(toL, b); drop(toB, b);
	if :: lk[b] == EARLIER -> lk[b] = PRESENT; peerReset(b) :: else fi;
	if :: bk[b] == EARLIER -> bver[b] = 0 :: else fi; /* Borrower.PeerReset */
	lk[b] = PRESENT; bk[b] = PRESENT;
	asked[b] = 0;
	ask(b)
}

/* lenderRestarts: NewLender over the table that its last process left. */
inline lenderRestarts() {
	for (i : 0 .. 1) {
		ver[i] = 1; owed[i] = 0; fid[i] = 0; past[i] = 0;
		lentAdopted[i] = (st[i] == LENT);
		fencedAdopted[i] = (st[i] == FENCED);
		lk[i] = NONE;
		if :: bk[i] == PRESENT -> bk[i] = EARLIER :: else fi;
		drop(toL, i); drop(toB, i)
	}
	for (i : 0 .. 2 * IDS - 1) { ans[i] = 0 }
	for (i : 0 .. FENCES) { rec[i] = 0 }
	i = 0;
	fences = 0;
	report(0, fencedOf(0, 0), fencedOf(0, 1), OPEN);
	report(1, fencedOf(1, 0), fencedOf(1, 1), OPEN)
}

/* A borrower's process dies in any state; or it only stops (SIGSTOP), is
   taken for dead and replaced, and may go on writing at any later time. */
#define crash(b) atomic { crashes < CRASHES -> crashes++; SAY("world: borrower %d crashes, crash %d\n", b, crashes) replaced(b); check() }
#define stop(b) atomic { crashes < CRASHES && zop[b] == 0 && zh[AT(b, 0)] + zh[AT(b, 1)] == 0 && \
	(op[b] != 0 || hs[AT(b, 0)] + hs[AT(b, 1)] != 0) -> \
	crashes++; SAY("world: borrower %d is stopped and replaced, crash %d\n", b, crashes) \
	zop[b] = op[b]; zoe[b] = oe[b]; \
	zh[AT(b, 0)] = (he[AT(b, 0)] == ep[0] -> he[AT(b, 0)] : 0); \
	zh[AT(b, 1)] = (he[AT(b, 1)] == ep[1] -> he[AT(b, 1)] : 0); \
	replaced(b); check() }

proctype World() {
	byte i; int swap;
	do
	:: atomic { !linked(0) -> connect(0); check() }
	/* the borrowers are alike: number 0 is the one that gets the first grant */
	:: atomic { BORROWERS == 2 && !linked(1) && grants > 0 -> connect(1); check() }
	:: crash(0)
	:: crash(1)
	:: stop(0)
	:: stop(1)
	:: atomic { crashes < CRASHES -> crashes++; SAY("world: the lender restarts, crash %d %d\n", crashes, 0) lenderRestarts(); check() }
	od
}

/* ---- the supervisor ---- */

/* confirm: Lender.ConfirmFence. An earlier fence may have been of the present
   process, which was not ended for this one. */
#ifdef CONFIRMEARLIER
#define confirmed(u, id) (fid[u] <= id)
#else
#define confirmed(u, id) (fid[u] == id || (past[u] && fid[u] <= id))
#endif

inline confirm(b, id) {
	if
	:: fencedOf(b, 0) && confirmed(0, id) -> goHome(0)
	:: else
	fi;
	if
	:: fencedOf(b, 1) && confirmed(1, id) -> goHome(1)
	:: else
	fi
}

/* handle: whoever may still write to the units of a fence is ended (pidfd),
   and waited for, before the fence is confirmed. */
inline handle(id) {
	b = rec[id] / 4;
	SAY("supervisor: ends who may write and confirms fence %d of borrower %d\n", id, b)
	if
	:: rec[id] % 4 == OPEN -> replaced(b)
	:: else
	fi;
	zombiesEnd(b);
	rec[id] = 0;
	confirm(b, id);
	b = 0
}

#ifdef INORDER
#define earlier(k, j) ((j) < (k) && rec[j] != 0)
#define first(k) !(earlier(k, 1) || earlier(k, 2) || earlier(k, 3) || earlier(k, 4) || earlier(k, 5) || \
	earlier(k, 6) || earlier(k, 7) || earlier(k, 8) || earlier(k, 9))
#else
#define first(k) true /* fences are handled in any order */
#endif

proctype Supervisor() {
	byte b, i, id;
	do
	:: atomic {
		if
		:: rec[1] != 0 && first(1) -> id = 1
		:: rec[2] != 0 && first(2) -> id = 2
		:: rec[3] != 0 && first(3) -> id = 3
		:: rec[4] != 0 && first(4) -> id = 4
		:: rec[5] != 0 && first(5) -> id = 5
		:: rec[6] != 0 && first(6) -> id = 6
		:: rec[7] != 0 && first(7) -> id = 7
		:: rec[8] != 0 && first(8) -> id = 8
		:: rec[9] != 0 && first(9) -> id = 9
		:: rec[10] != 0 && first(10) -> id = 10
		fi;
#ifdef DEAFSUPERVISOR
		rec[id] = 0;
#else
		handle(id);
#endif
		id = 0;
		check() }
	od
}

init {
	atomic {
		run Lender(); run Borrower(0); run Borrower(1);
		run Deadline(0); run Deadline(1); run Supervisor(); run World()
	}
}

#ifdef LIVE
/* Every reclaim ends, and so does every fence: again and again there is a
   moment at which nothing is asked back and nothing is out of use. Runs are
   bounded by GRANTS, so this is the moment when it has come home. */
#define settled (owed[0] == 0 && owed[1] == 0 && st[0] != FENCED && st[1] != FENCED)
ltl ends { [] <> settled }
#endif
