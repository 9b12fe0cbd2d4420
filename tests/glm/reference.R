# Fits of R that tests/glm/test_r.py compares with those of tfp_bfl.
#
#   Rscript reference.R FOLDER
#
# writes for each model the rows, FOLDER/NAME.csv, and the numbers of R, FOLDER/NAME.txt, one in each line.

options(digits = 17, warn = 2)
suppressPackageStartupMessages({library(MASS); library(survival); library(lme4); library(nnet)})
folder <- commandArgs(TRUE)[1]

write <- function(name, rows, ...) {
  write.csv(rows, file.path(folder, paste0(name, ".csv")), row.names = FALSE)
  writeLines(format(c(...), digits = 17), file.path(folder, paste0(name, ".txt")))
}
of <- function(fit) c(coef(fit), as.vector(vcov(fit)))

boston <- Boston[c("medv", "crim", "rm", "age", "lstat")]
write("gaussian", boston, of(lm(medv ~ ., boston)), sigma(lm(medv ~ ., boston))^2)

births <- birthwt[c("low", "age", "lwt", "smoke", "ht", "ui")]
fit <- glm(low ~ ., binomial, births, control = list(epsilon = 1e-14))
write("bernoulli", births, of(fit), logLik(fit))

school <- data.frame(Days = quine$Days, boy = +(quine$Sex == "M"), slow = +(quine$Lrn == "SL"), native = +(quine$Eth == "A"))
fit <- glm(Days ~ ., poisson, school, control = list(epsilon = 1e-14))
write("poisson", school, of(fit), logLik(fit))

races <- data.frame(race = birthwt$race - 1, age = (birthwt$age - 23) / 5, smoke = birthwt$smoke)
fit <- multinom(race ~ ., races, trace = FALSE, reltol = 1e-16, abstol = 1e-12, maxit = 1000)
write("multinomial", races, as.vector(coef(fit)), logLik(fit))

trial <- na.omit(lung[c("time", "status", "age", "sex", "ph.ecog", "inst")])
trial$status <- trial$status - 1
tight <- coxph.control(eps = 1e-14, toler.chol = 1e-15, iter.max = 50)
write("cox", trial, of(coxph(Surv(time, status) ~ age + sex + ph.ecog, trial, control = tight)))
write("stratified", trial, of(coxph(Surv(time, status) ~ age + sex + ph.ecog + strata(inst), trial, control = tight)))

curve <- summary(survfit(Surv(time, status) ~ 1, trial, conf.type = "log-log"))
write("curve", trial, curve$surv, curve$std.err, curve$lower, curve$upper)
test <- function(formula) {
  found <- survdiff(formula, trial)
  c(found$chisq, if (is.matrix(found$exp)) rowSums(found$exp) else found$exp)
}
write("log_rank", trial, test(Surv(time, status) ~ sex))
write("stratified_log_rank", trial, test(Surv(time, status) ~ sex + strata(inst)))

sleep <- data.frame(Reaction = sleepstudy$Reaction, Days = sleepstudy$Days, client = as.integer(sleepstudy$Subject))
exact <- lmerControl(optimizer = "bobyqa", optCtrl = list(rhoend = 1e-10))
for (form in c("intercepts", "slopes")) {
  right <- if (form == "slopes") Reaction ~ Days + (1 + Days | client) else Reaction ~ Days + (1 | client)
  fit <- lmer(right, sleep, control = exact)
  write(form, sleep, fixef(fit), as.vector(VarCorr(fit)$client), sigma(fit)^2)
}
likelihood <- lmer(Reaction ~ Days + (1 | client), sleep, REML = FALSE, control = exact)
write("likelihood", sleep, fixef(likelihood), as.vector(VarCorr(likelihood)$client), sigma(likelihood)^2, logLik(likelihood))

treated <- cbpp[rep(seq_len(nrow(cbpp)), cbpp$size), ]
treated$sick <- unlist(Map(function(n, k) rep(1:0, c(k, n - k)), cbpp$size, cbpp$incidence))
herds <- data.frame(sick = treated$sick, second = +(treated$period == 2), late = +(treated$period %in% 3:4), client = as.integer(treated$herd))
fit <- glmer(sick ~ second + late + (1 | client), herds, binomial, nAGQ = 15,
  control = glmerControl(optimizer = "bobyqa", optCtrl = list(rhoend = 1e-10), tolPwrss = 1e-12))
write("herds", herds, fixef(fit), as.vector(VarCorr(fit)$client))

# Left truncation, and columns that change with time: transplants of hearts.
waits <- data.frame(time = heart$stop, event = heart$event, entry = heart$start, age = heart$age, year = heart$year,
  surgery = heart$surgery, transplant = +(heart$transplant == 1))
surv <- Surv(heart$start, heart$stop, heart$event)
write("entries", waits, of(coxph(surv ~ age + year + surgery + transplant, waits, control = tight)))
curve <- summary(survfit(surv ~ 1, conf.type = "log-log"))
write("entries_curve", waits, curve$surv, curve$std.err, curve$n.risk)

# Robust variances: by row and by institution; of the hearts by patient, who has several rows.
write("robust", trial, as.vector(vcov(coxph(Surv(time, status) ~ age + sex + ph.ecog, trial, robust = TRUE, control = tight))),
  as.vector(vcov(coxph(Surv(time, status) ~ age + sex + ph.ecog, trial, cluster = inst, control = tight))))
waits$client <- heart$id
write("robust_entries", waits,
  as.vector(vcov(coxph(surv ~ age + year + surgery + transplant, waits, cluster = heart$id, control = tight))))
write("robust_strata", trial, as.vector(vcov(
  coxph(Surv(time, status) ~ age + sex + ph.ecog + strata(inst), trial, cluster = inst, control = tight))))

# Rows that stand for several, trials and offsets.
smokers <- transform(as.data.frame(esoph[c("agegp", "ncases", "ncontrols")]), age = as.integer(agegp))
smokers$alcohol <- as.integer(esoph$alcgp)
smokers$all <- smokers$ncases + smokers$ncontrols
cases <- smokers[smokers$all > 0, c("ncases", "age", "alcohol", "all")]
write("trials", cases, of(glm(cbind(ncases, all - ncases) ~ age + alcohol, binomial, cases, control = list(epsilon = 1e-14))))
deaths <- as.data.frame(Titanic)
deaths <- data.frame(died = +(deaths$Survived == "No"), male = +(deaths$Sex == "Male"), adult = +(deaths$Age == "Adult"),
  first = +(deaths$Class == "1st"), Freq = deaths$Freq)
write("weights", deaths, of(glm(died ~ male + adult + first, binomial, deaths, weights = Freq, control = list(epsilon = 1e-14))))
claims <- data.frame(Claims = Insurance$Claims, group = as.integer(Insurance$Group), age = as.integer(Insurance$Age),
  along = log(Insurance$Holders))
write("offset", claims, of(glm(Claims ~ group + age + offset(along), poisson, claims, control = list(epsilon = 1e-14))))

# Further parameters: the dispersion of R's summary, theta, and cutpoints. polr has the error of its optimizer.
values <- data.frame(medv = Boston$medv, crim = Boston$crim, rm = Boston$rm, lstat = Boston$lstat)
fit <- glm(medv ~ ., Gamma("log"), values, control = list(epsilon = 1e-14))
write("gamma", values, of(fit), summary(fit)$dispersion)
tight <- glm.control(epsilon = 1e-14, maxit = 200)
fit <- suppressWarnings(glm.nb(Days ~ ., school, control = tight))
theta <- theta.ml(fit$y, fitted(fit), limit = 200, eps = 1e-14)
write("negative_binomial", school, of(fit), log(fit$theta), attr(theta, "SE") / fit$theta, fit$twologlik / 2)
rents <- data.frame(Sat = as.integer(housing$Sat) - 1, medium = +(housing$Infl == "Medium"), high = +(housing$Infl == "High"),
  apartment = +(housing$Type == "Apartment"), atrium = +(housing$Type == "Atrium"), terrace = +(housing$Type == "Terrace"),
  contact = +(housing$Cont == "High"), Freq = housing$Freq)
fit <- polr(factor(Sat) ~ medium + high + apartment + atrium + terrace + contact, rents, weights = Freq, Hess = TRUE,
  control = list(reltol = 1e-16, abstol = 1e-12, maxit = 1000))
write("ordinal", rents, coef(fit), fit$zeta, as.vector(vcov(fit)), logLik(fit))
